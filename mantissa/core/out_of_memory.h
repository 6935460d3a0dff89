#pragma once

#include <string>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

namespace mantissa {

/// Whether `error` reports that a device or the host had too little memory. Only the GPU's allocator throws a
/// type of its own, c10::OutOfMemoryError. The CPU's allocator, CUDA and its libraries, and errors passed on
/// from another process, are recognized by their text.
bool is_out_of_memory(const c10::Error& error);

/// Describes the memory of `device` for an out-of-memory error: "cuda:1 has 79.2 GiB; libtorch holds 70.1 GiB
/// of it, and its tensors took 64.0 GiB at their peak". For the CPU it names the machine's memory and this
/// process's peak.
std::string describe_memory(at::Device device);

/// Returns the setting that helps against fragmentation if much of a GPU's memory is held in pieces too small
/// to use; otherwise "".
std::string fragmentation_cure(at::Device device);

}  // namespace mantissa
