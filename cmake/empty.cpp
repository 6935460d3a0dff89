// A precompiled header must belong to a source file.
