#pragma once

#include <string>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

namespace mantissa {

/// Whether `error` reports that a device or the host had too little memory: the GPU allocator's
/// c10::OutOfMemoryError, and what the CPU's allocator, CUDA and its libraries report without a type of its
/// own, or another process has reported as text.
bool is_out_of_memory(const c10::Error& error);

/// What an out-of-memory error has to say of `device`: "cuda:1 has 79.2 GiB; libtorch holds 70.1 GiB of it,
/// and its tensors took 64.0 GiB at their peak". Of the CPU, the machine's memory and this process's peak.
std::string describe_memory(at::Device device);

/// What to do when much of a GPU's memory lies in pieces too small to use: the setting that mends it. Empty
/// when little does.
std::string fragmentation_cure(at::Device device);

}  // namespace mantissa
