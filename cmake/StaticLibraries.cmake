# Included after libtorch, which is never static, was found: the other libraries are linked from their
# archives.
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
set(Protobuf_USE_STATIC_LIBS ON)
find_package(Protobuf REQUIRED MODULE)
# The CMake file of Debian's package names only the shared library.
find_path(YAML_CPP_INCLUDE_DIR yaml-cpp/yaml.h REQUIRED)
find_library(YAML_CPP_LIBRARY yaml-cpp REQUIRED)
add_library(yaml-cpp STATIC IMPORTED GLOBAL)
set_target_properties(yaml-cpp PROPERTIES IMPORTED_LOCATION ${YAML_CPP_LIBRARY}
                                          INTERFACE_INCLUDE_DIRECTORIES ${YAML_CPP_INCLUDE_DIR})
