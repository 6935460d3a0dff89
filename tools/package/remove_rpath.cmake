# cmake -D FILE=... -P: removes the run path of a program; chrpath and patchelf would need another package.
file(RPATH_REMOVE FILE "${FILE}")
