#pragma once

#include <string>
#include <vector>

namespace mantissa {

/// A module that is no torch::nn::Linear and multiplies by weights of its own, as torch::linear(x, weight, bias) does.
/// Modes treat these weights as they treat those of a torch::nn::Linear: they quantize or mark them in place.
class HasLinearWeights {
 public:
  virtual ~HasLinearWeights() = default;
  /// Returns the names of those of the module's own parameters, without dots, that are such weights. Each one is
  /// [out, in].
  virtual std::vector<std::string> linear_weights() const = 0;

 protected:
  HasLinearWeights() = default;
  HasLinearWeights(const HasLinearWeights&) = default;
  HasLinearWeights(HasLinearWeights&&) = default;
  HasLinearWeights& operator=(const HasLinearWeights&) = default;
  HasLinearWeights& operator=(HasLinearWeights&&) = default;
};

}  // namespace mantissa
