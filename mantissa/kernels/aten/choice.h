#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mantissa {

/// How fast one kernel was when the choice was made.
struct KernelTiming {
  std::string kernel;  ///< "libtorch", or a tier's name: "avx2", "avx512", "avx512_bf16", "generic"
  double seconds = 0;  ///< of processor time for one call, on one thread
};

/// Which kernel computes a family of operations in one dtype.
struct KernelChoice {
  std::string dtype;   ///< "bf16", "fp16" or "fp32"
  std::string family;  ///< "product", "convolution_by_weight", "attention", ...: see docs/cpu-kernels.md
  std::string kernel;  ///< as in KernelTiming
  /// "measured", "cached", "pinned", or "default": chosen by another family's times, or by the CPU's flags.
  std::string source;
  std::vector<KernelTiming> timings;  ///< empty unless measured or cached
  double over_float32 = 0;            ///< its time for a typical call over libtorch's in float32
};

/// Pins kernels, for this process, to what `pins` says, so that they are not chosen by measurement and
/// results have the same bits every time: KERNEL for all of them, or FAMILY=KERNEL or DTYPE.FAMILY=KERNEL,
/// several with commas between them, of which later ones win. FAMILY may end in *, for all families that
/// begin so; KERNEL is "libtorch" or a tier's name, or "measured": the fastest, also where a resumed
/// checkpoint has another one. "" changes nothing. What was pinned before, by the environment variable
/// MANTISSA_KERNELS too, stays pinned unless `pins` names it.
///
/// Threads: any may call, but what other threads have under way finishes in the kernel that it began with.
/// Errors:  c10::ValueError if `pins` cannot be read, names nothing that there is, or a tier that this CPU
///          lacks; then nothing is changed.
/// Example: choice_test.cpp, Choice.PinsFamilies
void pin_cpu_kernels(const std::string& pins);

/// What pin_cpu_kernels(pins) would throw, and nothing else.
void check_cpu_kernel_pins(const std::string& pins);

/// Pins what a checkpoint kept of cpu_kernel_choices(), but for what the user pinned by MANTISSA_KERNELS or
/// pin_cpu_kernels(), which stays; what an earlier call pinned does not. Returns the choices that cannot be
/// followed, as they stand in `choices`: this CPU or this release lacks the kernel, or MANTISSA_CPU_KERNELS=0
/// leaves all to libtorch.
std::vector<std::string> resume_cpu_kernels(const std::string& choices);

/// Every choice that was made in this process until now, as pin_cpu_kernels() takes it. A checkpoint keeps
/// it, so that a resumed run computes the same bits.
std::string cpu_kernel_choices();

/// All choices, those that were not needed until now included, and how the chosen kernels compare with
/// float32. Takes some tenths of a second.
std::vector<KernelChoice> cpu_kernel_table();

/// Reads MANTISSA_KERNELS, once. The first choice does so, too; a program calls it to learn of an error
/// earlier.
/// Errors: c10::ValueError, as pin_cpu_kernels().
void check_kernel_pins_of_environment();

}  // namespace mantissa
