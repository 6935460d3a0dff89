#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

namespace mantissa {

/// Puts a module into evaluation mode, and at its end restores the mode of each submodule: a layer that the user has
/// frozen stays frozen.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module) : root_(module), was_training_(module.is_training()) {
    for (const auto& part : module.modules(/*include_self=*/false))
      parts_.emplace_back(part, part->is_training());
    module.eval();
  }
  ~EvaluationMode() {
    root_.train(was_training_);
    // modules() lists parents before children, and train() also sets the children, so children are set last.
    for (const auto& [part, was_training] : parts_) part->train(was_training);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& root_;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> parts_;
  bool was_training_;
};

}  // namespace mantissa
