#pragma once

namespace mantissa {

/// While it lives, torch::nn modules that this thread makes leave out the random values of their weights:
/// Tensor::uniform_() and normal_(), of which their initialisation consists, do nothing and use no random
/// numbers. Neither do torch::rand() and torch::randn(). Such weights have any values, also NaN. Constant values,
/// such as the ones of a LayerNorm, are set as usual. Lightning: `empty_init`.
///
/// Memory:  the system provides a large tensor's memory when it is first written to, so a module that is made
///          this way takes almost none.
/// Threads: only this thread is affected.
/// Example: empty_init_test.cpp, EmptyInit.LeavesOutRandomValuesOnly.
class EmptyInit {
 public:
  EmptyInit();
  ~EmptyInit();
  EmptyInit(const EmptyInit&) = delete;
  EmptyInit& operator=(const EmptyInit&) = delete;

 private:
  bool was_on_;
};

}  // namespace mantissa
