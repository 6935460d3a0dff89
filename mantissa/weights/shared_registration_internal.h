#pragma once

#include <cstdint>

namespace mantissa {

/// Finds what another copy of this library in the process (a program's or a plug-in's) has registered. libtorch's
/// dispatcher is the one thing that all copies share, so the first copy defines an operator `name` ("mantissa::
/// packed_weights") that takes the layout of the shared struct that the calling copy knows. It returns the
/// struct's address, or 0 if the layout differs from its own. Returns null if there is no such operator.
/// Errors: c10::Error, which begins with `function`, if the layouts differ.
const void* find_shared_registration(const char* name, int64_t layout, const char* function);

}  // namespace mantissa
