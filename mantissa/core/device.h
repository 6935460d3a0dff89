#pragma once

#include <cstdint>
#include <string>

#include <c10/core/Device.h>

#include "mantissa/core/formats.h"

namespace mantissa {

/// Returns the device that a user named: "auto" (the first GPU, else the CPU), "cpu", "cuda", "cuda:1"; "gpu"
/// is the same as "cuda". If libtorch's CUDA library is linked and "auto" finds no GPU, a warning says why,
/// once.
/// Errors: c10::ValueError if the name is unknown or this machine or build has no such device.
at::Device resolve_device(const std::string& name);

/// Returns the number of CUDA devices that this process can use. It is 0 without a GPU, without a driver that
/// libtorch can use, and if libtorch's CUDA library is not linked (MANTISSA_CUDA=OFF). Never throws.
int64_t cuda_device_count();

/// Returns why cuda_device_count() is 0 and how to fix it, for errors and `mantissa modes`.
std::string why_no_cuda();

/// Throws if `device` is a GPU and this process can use none.
/// Errors: c10::ValueError with why_no_cuda().
void check_device(at::Device device);

/// Whether the CPU has `capability`, by cpu_feature_name() or by another of libtorch's names
/// (at::cpu::get_cpu_capabilities()). False for every other name.
bool cpu_has(const std::string& capability);

/// How a device multiplies matrices of a format.
enum class FormatSupport {
  kNative,      ///< its own instructions multiply in this format
  kEmulated,    ///< correct results through other instructions, usually slower than float32
  kUnavailable  ///< it cannot be run here
};

struct FormatSupportInfo {
  FormatSupport support;
  std::string reason;  ///< "AVX512-BF16", "no 16-bit product instructions on this CPU", ...
};

/// Whether `device` multiplies matrices of `format` natively, and with which instructions.
FormatSupportInfo format_support(at::Device device, Format format);

/// Returns the peak memory. CPU: the process's peak resident set since it started. CUDA: the largest size of
/// all tensors since reset_peak_memory(), as libtorch's caching allocator counts it; a device without an
/// index means the current one.
/// Units: bytes.
/// Errors: those of check_device(): without a GPU there is no count, and the process's could be mistaken for
///         it.
int64_t peak_memory_bytes(at::Device device);
/// Resets the peak of a CUDA device. Does nothing on the CPU, where the system keeps the count.
/// Errors: those of check_device().
void reset_peak_memory(at::Device device);

}  // namespace mantissa
