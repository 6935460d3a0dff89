#pragma once

namespace mantissa {

/// Whether the environment variable MANTISSA_CPU_KERNELS leaves the kernels of overrides.h on.
/// Errors: c10::ValueError if it is neither 0 nor 1.
bool cpu_kernels_by_environment();

/// Reads every environment variable that Mantissa obeys. A program that calls it at its start is told of a
/// wrong one at once, and not by the first region or mode that comes to it.
/// Errors: c10::ValueError naming the variable, its value and those that it may have.
void check_environment();

}  // namespace mantissa
