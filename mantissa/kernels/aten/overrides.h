#pragma once

namespace mantissa {

/// Puts this library's products of bf16 and fp16 matrices (mm, addmm, bmm, baddbmm, addmv, dot, with their
/// out= and in-place forms, and whatever reaches them: linear, matmul, einsum, mv) in the place of libtorch's
/// CPU kernels for the whole process; likewise convolutions, attention as one operation and GELU, forward and
/// backward; and products of activations and float32 weights (linear, matmul, mm, addmm) in the place of CPU
/// autocast's casts and products. On CPUs without 16-bit products libtorch's are 80 to 400 times slower than
/// float32; these are as fast as float32. Returns whether they are on: false, and nothing changes, under
/// MANTISSA_CPU_KERNELS=0 in the environment.
///
/// Other dtypes, and what is faster or defined only in libtorch (see docs/cpu-kernels.md), still run
/// libtorch's own code. Autograd, autocast, InferenceMode and double backward are above the CPU kernels and
/// see no difference.
///
/// Numerics: those of kernels::Gemm, kernels::Convolution and kernels::Attention: float32 sums in an order of their own,
///           one rounding. Not bit for bit libtorch's, whose order and rounding differ between CPUs, too.
/// Threads:  any may call, also at the same time and while others are in autocast or in a product, which
///           finishes in the kernel that it began with. The kernels are registered once, when the program or
///           the shared object that links this library is loaded, and are never taken out: a flag decides at
///           each call. While they are off a call passes one branch (a nanosecond or two) and then runs
///           libtorch's own kernel.
/// Copies:   a process may hold several (a program's, a plug-in's, Python's). The first that is loaded
///           registers its kernels, and the functions here, in whichever copy, switch those. A shared object
///           whose kernels are registered stays loaded after dlclose().
/// Errors:   c10::ValueError if MANTISSA_CPU_KERNELS is neither 0 nor 1, or MANTISSA_MAX_ISA names no tier;
///           c10::Error if libtorch refuses a kernel, or if the kernels of another release of Mantissa are
///           registered.
/// Example:  overrides_test.cpp, Overrides.AreOnAndOffByACall
bool enable_cpu_kernels();

/// While one lives, this thread's autocast casts weights in operations of their own, before the product: the
/// same numbers, but for a weight that is used several times (docs/cpu-kernels.md). For what looks at
/// operations one by one.
class SeparateCasts {
 public:
  SeparateCasts();
  ~SeparateCasts();
  SeparateCasts(const SeparateCasts&) = delete;
  SeparateCasts& operator=(const SeparateCasts&) = delete;

 private:
  bool before_;
};

/// Gives libtorch its own kernels back, bit for bit, for the rest of the process:
/// enable_cpu_kernels_by_default() then changes nothing, enable_cpu_kernels() does.
void disable_cpu_kernels();

bool cpu_kernels_enabled();

/// What Autocast and the 16-bit precision modes call: enable_cpu_kernels(), unless disable_cpu_kernels() was
/// called. After the first call it costs a few nanoseconds.
void enable_cpu_kernels_by_default();

}  // namespace mantissa
