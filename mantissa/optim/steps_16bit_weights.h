#pragma once

#include <ATen/core/Tensor.h>

namespace mantissa {

/// A mixin for an optimizer that a precision has to know more about, because it steps 16-bit weights in its own way
/// or keeps something for each of its parameters.
///
/// Example: precision/master_weights_test.cpp, MasterWeights.TellAnOptimizerWhichParametersTheyReplace
class Steps16BitWeights {
 public:
  virtual ~Steps16BitWeights() = default;

  /// Called after `now` has taken the place of `before` in a group, as master weights do, and once more the other
  /// way round if that is undone.
  virtual void replaced_parameter(const at::Tensor& /*before*/, const at::Tensor& /*now*/) {}
  /// Whether the update of a 16-bit weight is computed in float32, from a state that holds small squares.
  virtual bool updates_in_float32() const { return false; }
};

}  // namespace mantissa
