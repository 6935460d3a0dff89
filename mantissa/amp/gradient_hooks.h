#pragma once

#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// The order in which the hooks of one parameter run. Among hooks with the same value, the one added last
/// runs first.
enum class GradientHookOrder {
  kMove,   ///< takes the gradient to where the optimizer finds it, for example to a master weight
  kReduce  ///< sends it to other processes
};

/// Calls a function after each gradient that a backward pass accumulates into a parameter, until the handle
/// is destroyed. libtorch has room for one such hook per parameter; all handles share it. A hook that was
/// there before is called first and remains when the handles are gone.
///
/// Threads: make and destroy handles between backward passes; the function is called on the thread that
///          accumulates.
/// Errors:  c10::ValueError for a tensor that is not a leaf: nothing is accumulated into it.
/// Example: gradient_hooks_test.cpp, GradientHook.RunsInOrderBesideOthers
class GradientHook {
 public:
  /// `holder`: the tensor whose grad() has the gradient, which is the parameter at first. A kMove hook that
  /// takes the gradient to another tensor assigns that tensor. Later kMove hooks are then not called, and
  /// kReduce hooks are called with it.
  using Call = std::function<void(at::Tensor& holder)>;

  GradientHook(const at::Tensor& parameter, GradientHookOrder order, Call call);
  ~GradientHook();
  GradientHook(GradientHook&&) noexcept = default;
  GradientHook& operator=(GradientHook&& other) noexcept;
  GradientHook(const GradientHook&) = delete;
  GradientHook& operator=(const GradientHook&) = delete;

 private:
  struct Registered;
  void remove();

  std::shared_ptr<Registered> registered_;  ///< null after a move
};

}  // namespace mantissa
