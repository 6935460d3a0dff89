#pragma once

namespace mantissa {

/// True if the environment variable MANTISSA_CPU_KERNELS leaves the kernels of overrides.h on.
/// Errors: c10::ValueError if the variable is neither 0 nor 1.
bool cpu_kernels_by_environment();

/// Checks every environment variable that changes how Mantissa computes. A program that calls this at its
/// start reports a wrong value at once. Otherwise the first region or mode that reads the variable reports
/// it.
/// Errors: c10::ValueError that names the variable, its value and the accepted values.
void check_environment();

}  // namespace mantissa
