#pragma once

#include <string>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

namespace mantissa {

/// Whether `error` reports that a device or the host had too little memory. This includes the GPU allocator's
/// c10::OutOfMemoryError, errors that the CPU's allocator, CUDA and its libraries report without a type of
/// their own, and text that another process has reported.
bool is_out_of_memory(const c10::Error& error);

/// Describes the memory of `device` for an out-of-memory error: "cuda:1 has 79.2 GiB; libtorch holds 70.1 GiB
/// of it, and its tensors took 64.0 GiB at their peak". For the CPU it names the machine's memory and this
/// process's peak.
std::string describe_memory(at::Device device);

/// Returns the setting that helps if much of a GPU's memory is in pieces too small to use, and "" if little
/// is.
std::string fragmentation_cure(at::Device device);

}  // namespace mantissa
