#pragma once

namespace mantissa {

/// Whether the environment variable MANTISSA_CPU_KERNELS leaves the kernels of overrides.h on.
/// Errors: c10::ValueError if it is neither 0 nor 1.
bool cpu_kernels_by_environment();

/// Checks every environment variable that changes how Mantissa computes. A program that calls this at its
/// start learns of a wrong value at once. Otherwise the first region or mode that reads the variable reports
/// it.
/// Errors: c10::ValueError naming the variable, its value and those that it may have.
void check_environment();

}  // namespace mantissa
