#pragma once

#include <vector>

#include "mantissa/optim/fused_optimizer.h"
#include "mantissa/optim/sgd.h"

namespace mantissa {

/// SGD in one kernel call for all parameters of a group, device and dtype: the same numbers as Python's
/// torch.optim.SGD(fused=True) bit for bit, except where that one (2.11) errs:
/// - 16-bit parameters on the CPU: Python leaves them as they are but for the last few elements of each
///   tensor, and reads momentum past its end. Here they are computed in float32 and rounded to nearest, bit
///   for bit what Python makes of those last elements.
/// - A first step that found_inf drops: Python keeps uninitialised memory as momentum. Here the next step is
///   the first, also with dampening, which the first gradient is spared.
/// - A parameter whose first gradient comes later than others': Python fails.
/// FusedOptimizer says what all fused ones share; a file of SGD's loads here and back.
///
/// Numerics: differs from SGD in last bits, by which products and sums the kernel contracts, and in 16-bit
///           dtypes, where SGD rounds at each operation.
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
  /// Also takes what SGD and torch::optim::SGD saved.
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
