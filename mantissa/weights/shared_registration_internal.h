#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

namespace mantissa {

/// Kernels in libtorch's dispatcher. Its destructor would remove them.
using KernelLibrary = std::unique_ptr<torch::Library>;

/// Returns an empty library under `key`; the namespace "_" is that of fall-backs.
KernelLibrary kernel_library(c10::DispatchKey key, const char* name_space = "aten");

/// The kernels of one kind of weights, and what all copies of this library in a process (a program's and a
/// plug-in's) share about them.
struct SharedKernels {
  /// Of an operator in the namespace `mantissa`: "packed_weights". libtorch's dispatcher is the one thing that
  /// all copies share, so the first copy defines the operator, and the others call it.
  std::string name;
  int64_t layout;            ///< changes with the struct at `registration` and with what it leads to
  const void* registration;  ///< what is shared: a constant of the copy
  const char* function;      ///< with which errors begin
  std::vector<KernelLibrary> (*make)();  ///< registers the kernels
};

/// Returns the registration of the copy whose kernels are registered. Registers this copy's kernels if no copy
/// has registered any, and keeps both this copy and the kernels until the process ends: the dispatcher, and the
/// weights that this copy makes, hold pointers to its code.
///
/// Errors: c10::Error if libtorch refuses a kernel, if the registered kernels have another layout, or if the shared
///         object that holds this code cannot be kept loaded.
const void* find_or_register(const SharedKernels& kernels);

}  // namespace mantissa
