#pragma once

// For tests: an optimizer whose state has a format of its own.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/optim/optimizer_internal.h"
#include "mantissa/optim/sgd.h"
#include "mantissa/optim/state_format.h"

namespace mantissa {

struct BlockwiseMomentumState : torch::optim::OptimizerCloneableParamState<BlockwiseMomentumState> {
  at::Tensor step, codes, absmax;

  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("step", step);
    archive.write("codes", codes);
    archive.write("absmax", absmax);
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    archive.read("step", step);
    archive.read("codes", codes);
    archive.read("absmax", absmax);
  }
};

/// Momentum in 8 bits: codes in blocks of four, and each block's largest magnitude. Neither tensor has the
/// parameter's shape or dtype.
class BlockwiseMomentum final : public torch::optim::Optimizer, public HasStateFormats {
 public:
  BlockwiseMomentum(const std::vector<torch::optim::OptimizerParamGroup>& groups, const SGDOptions& options)
      : Optimizer(groups, std::make_unique<SGDOptions>(options)) {}

  at::Tensor step(LossClosure = nullptr) override {
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups_) {
      for (at::Tensor& parameter : group.params()) {
        if (parameter.grad().defined()) update(parameter, group.options().get_lr());
      }
    }
    return {};
  }
  std::vector<StateFormat> state_formats(const at::Tensor& parameter) const override {
    const int64_t blocks = blocks_of(parameter);
    return {StateFormat::step(),
            {.name = "codes", .sizes = {blocks * kBlock}, .dtype = at::kByte},
            {.name = "absmax", .sizes = {blocks}, .dtype = at::kFloat}};
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<BlockwiseMomentumState, SGDOptions>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override {
    load_optimizer<BlockwiseMomentumState, SGDOptions>("BlockwiseMomentum", "nesterov", archive, *this);
  }

 private:
  static constexpr int64_t kBlock = 4;
  static int64_t blocks_of(const at::Tensor& parameter) { return (parameter.numel() + kBlock - 1) / kBlock; }

  void update(at::Tensor& parameter, double lr) {
    auto& slot = state_[parameter.unsafeGetTensorImpl()];
    const int64_t blocks = blocks_of(parameter), numel = parameter.numel();
    if (!slot) {
      auto fresh = std::make_unique<BlockwiseMomentumState>();
      fresh->step = at::zeros({});
      fresh->codes = at::full({blocks * kBlock}, 128, at::kByte);
      fresh->absmax = at::zeros({blocks});
      slot = std::move(fresh);
    }
    auto& state = static_cast<BlockwiseMomentumState&>(*slot);
    const auto in_blocks = [&](const at::Tensor& values) { return values.reshape({blocks, kBlock}); };
    at::Tensor moment =
        in_blocks((state.codes.to(at::kFloat) - 128) / 127) * state.absmax.unsqueeze(1) * 0.9F;
    moment.view(-1).narrow(0, 0, numel).add_(parameter.grad().reshape(-1));
    state.absmax = moment.abs().amax(1);
    state.codes =
        (moment / state.absmax.clamp_min(1e-30F).unsqueeze(1) * 127).round().add(128).to(at::kByte).view(-1);
    state.step += 1;
    parameter.sub_(moment.view(-1).narrow(0, 0, numel).reshape(parameter.sizes()), lr);
  }
};

}  // namespace mantissa
