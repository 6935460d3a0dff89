#pragma once

#include <vector>

#include "mantissa/optim/adam.h"

namespace mantissa {

/// AdamOptions with AdamW's default, a weight decay of 1e-2. It adds no members, so
/// `AdamWOptions(1e-3).weight_decay(0.1)`, which is an AdamOptions, loses nothing.
struct AdamWOptions : public AdamOptions {
  AdamWOptions(double lr = 1e-3) : AdamOptions(lr) { weight_decay(1e-2); }
  AdamWOptions(const AdamOptions& options) : AdamOptions(options) {}
};

/// Adam with decoupled weight decay; its numbers equal those of Python's torch.optim.AdamW bit for bit.
/// Everything else is as in Adam.
///
/// Source:  Loshchilov and Hutter 2019, arXiv:1711.05101.
/// Example: adam_test.cpp, AdamW.PE07_FollowsWhatPythonRecorded.
class AdamW final : public Adam {
 public:
  explicit AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 const AdamWOptions& defaults = {})
      : Adam(groups, defaults, WeightDecay::kDecoupled) {}
  explicit AdamW(std::vector<at::Tensor> parameters, const AdamWOptions& defaults = {})
      : AdamW({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}
};

}  // namespace mantissa
