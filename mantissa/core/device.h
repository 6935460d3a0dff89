#pragma once

#include <cstdint>
#include <string>

#include <c10/core/Device.h>

#include "mantissa/core/formats.h"

namespace mantissa {

/// The device a user named: "auto" (the first GPU, else the CPU), "cpu", "cuda", "cuda:1"; "gpu" is "cuda". Where
/// libtorch's CUDA library is linked and "auto" finds no GPU, a warning says why, once.
/// Errors: c10::ValueError if the name is unknown or this machine or build has no such device.
at::Device resolve_device(const std::string& name);

/// Number of CUDA devices that this process can use; 0 without a GPU, without a driver that serves libtorch, and where
/// libtorch's CUDA library is not linked (MANTISSA_CUDA=OFF). Never throws.
int64_t cuda_device_count();

/// Why cuda_device_count() is 0, with the cure, for errors and `mantissa modes`.
std::string why_no_cuda();

/// Errors: c10::ValueError with why_no_cuda() if `device` is a GPU and this process can use none.
void check_device(at::Device device);

/// Whether the CPU has `capability`: hardware_cpu_features() by cpu_feature_name(), or another of libtorch's names
/// (at::cpu::get_cpu_capabilities()). False for every other name.
bool cpu_has(const std::string& capability);

/// How a device multiplies matrices of a format.
enum class FormatSupport {
  kNative,      ///< its own instructions multiply in this format
  kEmulated,    ///< right results through other instructions, usually slower than float32
  kUnavailable  ///< it cannot be run here
};

struct FormatSupportInfo {
  FormatSupport support;
  std::string reason;  ///< "AVX512-BF16", "no 16-bit product instructions on this CPU", ...
};

/// Whether `device` multiplies matrices of `format` natively, and by what.
FormatSupportInfo format_support(at::Device device, Format format);

/// Peak memory. CPU: the process's peak resident set since it began; CUDA: what tensors held at the most since
/// reset_peak_memory(), by libtorch's caching allocator; of a device without a number the current one's.
/// Units: bytes.
/// Errors: those of check_device(): without a GPU there is no count, and the process's would be mistaken for it.
int64_t peak_memory_bytes(at::Device device);
/// Nothing on the CPU, where the system keeps the count.
/// Errors: as above.
void reset_peak_memory(at::Device device);

}  // namespace mantissa
