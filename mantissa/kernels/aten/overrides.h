#pragma once

namespace mantissa {

/// Replaces libtorch's CPU kernels for 16-bit operations with this library's, for the whole process:
///
/// - products of bf16 and fp16 matrices: mm, addmm, bmm, baddbmm, addmv and dot with their out= and in-place
///   forms, and all that calls them (linear, matmul, einsum, mv)
/// - convolutions, fused attention and GELU, forward and backward
/// - products of activations and float32 weights (linear, matmul, mm, addmm) under CPU autocast, in place of
///   its casts and products
///
/// On CPUs without 16-bit products, libtorch's kernels take up to 142 times as long as in float32. These are as
/// fast as float32. Returns true if the kernels are on. With MANTISSA_CPU_KERNELS=0 in the environment it
/// returns false and changes nothing.
///
/// Other dtypes, and operations that are faster or defined only in libtorch (see docs/cpu-kernels.md), still
/// run libtorch's own code. Autograd, autocast, InferenceMode and double backward lie above the CPU kernels
/// and see no difference.
///
/// Numerics: those of kernels::Gemm, kernels::Convolution and kernels::Attention: float32 sums in a fixed
///           order, and one rounding. The bits differ from libtorch's, whose order and rounding also differ
///           between CPUs.
/// Threads:  any may call, even concurrently and while other threads are in autocast or in a product; such a
///           product finishes in the kernel it began with. The kernels are registered once, when the program
///           or the shared object that links this library is loaded, and are never removed: a flag is read at
///           each call. While they are off, a call costs one more branch (a nanosecond or two) and then runs
///           libtorch's own kernel.
/// Copies:   a process may hold several copies of the library (a program's, a plug-in's, Python's). The first
///           one that is loaded registers its kernels, and the functions of this header switch those,
///           whichever copy calls them. A shared object whose kernels are registered stays loaded after
///           dlclose().
/// Errors:   c10::ValueError if MANTISSA_CPU_KERNELS is neither 0 nor 1, or MANTISSA_MAX_ISA names no tier;
///           c10::Error if libtorch refuses a kernel, or if the kernels of another release of Mantissa are
///           registered.
/// Example:  overrides_test.cpp, Overrides.AreOnAndOffByACall
bool enable_cpu_kernels();

/// While an instance lives, this thread's autocast casts weights in separate operations before the product.
/// The numbers are the same, except for a weight that is used several times (docs/cpu-kernels.md). It is
/// meant for code that observes single operations.
class SeparateCasts {
 public:
  SeparateCasts();
  ~SeparateCasts();
  SeparateCasts(const SeparateCasts&) = delete;
  SeparateCasts& operator=(const SeparateCasts&) = delete;

 private:
  bool before_;
};

/// Switches back to libtorch's own kernels, bit for bit, for the rest of the process. A later call of
/// enable_cpu_kernels_by_default() changes nothing; enable_cpu_kernels() switches our kernels on again.
void disable_cpu_kernels();

bool cpu_kernels_enabled();

/// Calls enable_cpu_kernels() unless disable_cpu_kernels() was called. Autocast and the 16-bit precision
/// modes call it. After the first call it costs a few nanoseconds.
void enable_cpu_kernels_by_default();

}  // namespace mantissa
