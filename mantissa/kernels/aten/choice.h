#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mantissa {

/// The speed of one kernel when the choice was made.
struct KernelTiming {
  /// "libtorch", or a tier's name: "generic", "avx2", "avx512", "avx512_vnni", "avx512_bf16" or "amx_bf16".
  std::string kernel;
  double seconds = 0;  ///< processor time of one call, on one thread
};

/// The kernel that computes a family of operations in one dtype.
struct KernelChoice {
  std::string dtype;   ///< "bf16", "fp16" or "fp32"
  std::string family;  ///< "product", "convolution_by_weight", "attention", ...: see docs/cpu-kernels.md
  std::string kernel;  ///< as in KernelTiming
  /// "measured", "cached", "pinned", or "default": chosen by the times of another family, or by the CPU's
  /// flags.
  std::string source;
  std::vector<KernelTiming> timings;  ///< empty unless measured or cached
  /// The time of a typical call, divided by that of the same call in float32 with libtorch's kernel. For weights in 4
  /// and 8 bits it is the call with a float32 weight.
  double over_float32 = 0;
};

/// Pins kernels for this process, so that they are not chosen by measurement and results have the same bits
/// every time. `pins` is a comma-separated list of KERNEL (for all families), FAMILY=KERNEL or
/// DTYPE.FAMILY=KERNEL; later entries win. FAMILY may end in * to name all families with that prefix. KERNEL
/// is "libtorch", the name of a tier, or "measured": the fastest kernel, even where a resumed checkpoint has
/// another one. "" changes nothing. Earlier pins, including those of the environment variable
/// MANTISSA_KERNELS, stay unless `pins` names them.
///
/// Threads: any may call. Operations that other threads have begun finish in the kernel they began with.
/// Errors:  c10::ValueError if `pins` cannot be parsed, names an unknown kernel, family or dtype, or names a
///          tier that this CPU lacks. Nothing is changed then.
/// Example: choice_test.cpp, Choice.PinsFamilies
void pin_cpu_kernels(const std::string& pins);

/// Throws what pin_cpu_kernels(pins) would throw, and changes nothing.
void check_cpu_kernel_pins(const std::string& pins);

/// Pins the choices that a checkpoint saved from cpu_kernel_choices(). Pins that the user set by
/// MANTISSA_KERNELS or pin_cpu_kernels() stay; pins of an earlier call of this function are replaced. Returns
/// the choices that cannot be followed, as they appear in `choices`: this CPU or this release lacks the
/// kernel, or MANTISSA_CPU_KERNELS=0 leaves all operations to libtorch.
std::vector<std::string> resume_cpu_kernels(const std::string& choices);

/// Returns every choice that this process has made until now, in the format of pin_cpu_kernels(). A
/// checkpoint saves it, so that a resumed run computes the same bits.
std::string cpu_kernel_choices();

/// Returns all choices, including those that were not needed until now, and how the chosen kernels compare
/// with float32. Takes some tenths of a second.
std::vector<KernelChoice> cpu_kernel_table();

/// Reads MANTISSA_KERNELS once. The first choice also reads it; a program calls this function to get an error
/// earlier.
/// Errors: c10::ValueError, as for pin_cpu_kernels().
void check_kernel_pins_of_environment();

}  // namespace mantissa
