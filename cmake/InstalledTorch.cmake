# For a wheel: TORCH_ROOT is the PyTorch of the Python that builds it.
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR "The kernels for Python are built for Linux; this is ${CMAKE_SYSTEM_NAME}.")
endif()
if(NOT TORCH_ROOT)
  find_package(Python REQUIRED COMPONENTS Interpreter)
  # In an isolated build pip hides the packages of the environment, but not their location.
  set(_ask [=[
import importlib.util, pathlib, sysconfig
found = importlib.util.find_spec("torch")
folders = [found.submodule_search_locations[0]] if found else []
folders += [pathlib.Path(sysconfig.get_path(kind), "torch") for kind in ("platlib", "purelib")]
print(next((folder for folder in folders if pathlib.Path(folder, "include").is_dir()), ""))
]=])
  execute_process(COMMAND ${Python_EXECUTABLE} -c "${_ask}" OUTPUT_VARIABLE _folder OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  if(NOT _folder)
    message(FATAL_ERROR "No PyTorch is installed for ${Python_EXECUTABLE}. Install torch >= 2.11 first and repeat with "
                        "--no-build-isolation, or name its folder: -C cmake.define.TORCH_ROOT=.../site-packages/torch")
  endif()
  set(TORCH_ROOT "${_folder}" CACHE PATH "Folder that holds libtorch's include/ and lib/")
endif()
