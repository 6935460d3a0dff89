#pragma once

#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// Which hooks of a parameter run first. Of hooks with the same place in the order the latest runs first; to those
/// that follow, a gradient that it has moved away is undefined.
enum class GradientHookOrder {
  kMove,   ///< takes the gradient to where the optimizer finds it, for example to a master weight
  kReduce  ///< sends it to other processes
};

/// Calls a function after each gradient that a backward pass accumulates into a parameter, until the handle
/// is destroyed. libtorch has room for one such hook a parameter; these share it, and a hook that was there
/// before is called first and stays behind.
///
/// Threads: make and destroy handles between backward passes; the function is called on the thread that
///          accumulates.
/// Errors:  c10::ValueError for a tensor that is no leaf, which accumulates nothing.
/// Example: gradient_hooks_test.cpp, GradientHook.RunsInOrderBesideOthers
class GradientHook {
 public:
  using Call = std::function<void(const at::Tensor& parameter)>;

  GradientHook(const at::Tensor& parameter, GradientHookOrder order, Call call);
  ~GradientHook();
  GradientHook(GradientHook&&) noexcept = default;
  GradientHook& operator=(GradientHook&& other) noexcept;
  GradientHook(const GradientHook&) = delete;
  GradientHook& operator=(const GradientHook&) = delete;

 private:
  struct Registered;
  void remove();

  std::shared_ptr<Registered> registered_;  ///< null of a handle that was moved from
};

}  // namespace mantissa
