# cmake -D FILE=... -P: takes the run path out of a program, which chrpath and patchelf would need a package for.
file(RPATH_REMOVE FILE "${FILE}")
