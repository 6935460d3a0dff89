#pragma once

// Differences between the releases of libtorch that Mantissa builds with, 2.11 to 2.15.

#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/headeronly/version.h>

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 11,
              "Mantissa needs libtorch 2.11 or newer: point TORCH_ROOT at one");

// libtorch 2.13 has no named dimensions any more.
#if __has_include(<ATen/core/NamedTensor.h>)
#include <ATen/core/NamedTensor.h>
#endif

namespace mantissa {

/// Returns whether the dimensions of `x` have names, which an operation would have to check and pass on.
inline bool has_names([[maybe_unused]] const at::Tensor& x) {
#if __has_include(<ATen/core/NamedTensor.h>)
  return x.has_names();
#else
  return false;
#endif
}

/// The owning pointer of a node in autograd's graph: std::shared_ptr in 2.11, c10::intrusive_ptr in 2.13.
/// Code that uses it includes torch/csrc/autograd/function.h.
using NodePointer = std::remove_cv_t<std::remove_reference_t<decltype(std::declval<at::Tensor>().grad_fn())>>;

}  // namespace mantissa
