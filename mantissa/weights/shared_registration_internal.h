#pragma once

#include <cstdint>

namespace mantissa {

/// Returns the address of a struct that another copy of this library in the process, such as a plug-in's, has
/// registered under `name`; null if none has.
///
/// The copies share nothing but libtorch's dispatcher. The first copy therefore defines an operator `name`, for
/// example "mantissa::packed_weights". Its argument is the number of the struct's layout that the caller knows, and
/// its result is the struct's address, or 0 if the struct has another layout.
/// Errors: c10::Error, which begins with `function`, if the layouts differ.
const void* find_shared_registration(const char* name, int64_t layout, const char* function);

}  // namespace mantissa
