#pragma once

#include <vector>

#include "mantissa/optim/fused_optimizer.h"
#include "mantissa/optim/sgd.h"

namespace mantissa {

/// SGD in one kernel call for all parameters of a group, device and dtype; its numbers equal those of
/// Python's torch.optim.SGD(fused=True) bit for bit, except where that one (2.11) errs:
/// - 16-bit parameters on the CPU: Python updates only the last few elements of each tensor and reads
///   momentum past its end. Here they are computed in float32 and rounded to nearest, which gives bit for bit
///   what Python computes for those last elements.
/// - A first step that found_inf skips: Python keeps uninitialised memory as momentum. Here the next step
///   counts as the first one; with dampening, too, its gradient enters the momentum whole.
/// - A parameter whose first gradient comes later than the others': Python fails.
/// FusedOptimizer documents what all fused optimizers share. Files of SGD load here, and the other way round.
///
/// Numerics: differs from SGD in the last bits, because the kernel contracts other products and sums, and in
///           16-bit dtypes, because SGD rounds at each operation.
/// Memory:   as SGD.
/// Example:  fused_sgd_test.cpp, FusedSGD.FollowsSGD.
class FusedSGD final : public FusedOptimizer {
 public:
  explicit FusedSGD(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                    const SGDOptions& defaults = {}, const FusedOptions& options = {});
  explicit FusedSGD(std::vector<at::Tensor> parameters, const SGDOptions& defaults = {},
                    const FusedOptions& options = {})
      : FusedSGD({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults, options) {}

  void save(torch::serialize::OutputArchive& archive) const override;
  /// Also loads files of SGD and torch::optim::SGD.
  void load(torch::serialize::InputArchive& archive) override;
  std::vector<StateFormat> state_formats(const at::Tensor& parameter) const override;

 protected:
  const torch::optim::OptimizerOptions& checked_options(
      const torch::optim::OptimizerParamGroup& group) const override;
  void add_state(Slot& slot, const torch::optim::OptimizerOptions& options, at::ScalarType dtype) override;
  void call_kernel(const Batch& batch, const torch::optim::OptimizerOptions& options) const override;
  void finish(const std::vector<Slot>& slots, const Batch& batch) override;
  bool needs_float32(const at::Tensor& parameter) const override;
};

}  // namespace mantissa
