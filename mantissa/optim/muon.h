#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/arg.h>

#include "mantissa/optim/low_bit_optimizer.h"
#include "mantissa/optim/newton_schulz.h"

namespace mantissa {

/// The options of one parameter group of Muon and Muon8bit.
struct MuonOptions : public torch::optim::OptimizerCloneableOptions<MuonOptions> {
  MuonOptions(double lr = 1e-3) : lr_(lr) {}

  using betas_t = std::tuple<double, double>;
  using ns_coefficients_t = NewtonSchulzCoefficients;
  using adjust_lr_fn_t = std::optional<std::string>;

  TORCH_ARG(double, lr) = 1e-3;
  /// Shrinks the parameter by lr * weight_decay before the step.
  TORCH_ARG(double, weight_decay) = 0.1;
  /// The decay rate of the mean gradient, from 0 to 1.
  TORCH_ARG(double, momentum) = 0.95;
  /// Steps along the mean of the gradient and the mean gradient.
  TORCH_ARG(bool, nesterov) = true;
  TORCH_ARG(ns_coefficients_t, ns_coefficients) = kMuonCoefficients;
  /// The least norm of a matrix in zeropower_via_newtonschulz(). In a group without Muon, AdamW's eps.
  TORCH_ARG(double, eps) = 1e-7;
  TORCH_ARG(int64_t, ns_steps) = 5;
  /// "original" or unset: lr * sqrt(max(1, rows / columns)). "match_rms_adamw": 0.2 * lr * sqrt(max(rows,
  /// columns)), so that the update is as large as AdamW's, and AdamW's lr and weight_decay serve both.
  TORCH_ARG(adjust_lr_fn_t, adjust_lr_fn) = std::nullopt;
  /// False: AdamW steps the parameters of this group, whose shapes may be any, with lr, betas, eps and
  /// weight_decay. torch.optim.Muon has no such groups; Keller Jordan's MuonWithAuxAdam has them.
  TORCH_ARG(bool, use_muon) = true;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);

 public:
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// The state of Muon and Muon8bit for one parameter, under the names of torch.optim's Muon and AdamW.
///
/// Shapes: a matrix has momentum_buffer, of its shape. A parameter that AdamW steps has step, 0-dim, and exp_avg
///         and exp_avg_sq, of its shape. They are float32, or uint8 codes beside the float32 [blocks] whose name
///         ends in _absmax: see BlockwiseCodes (blockwise.h). All are contiguous.
struct MuonParamState : public torch::optim::OptimizerCloneableParamState<MuonParamState> {
  TORCH_ARG(at::Tensor, step);
  TORCH_ARG(at::Tensor, momentum_buffer);
  TORCH_ARG(at::Tensor, momentum_buffer_absmax);
  TORCH_ARG(at::Tensor, exp_avg);
  TORCH_ARG(at::Tensor, exp_avg_absmax);
  TORCH_ARG(at::Tensor, exp_avg_sq);
  TORCH_ARG(at::Tensor, exp_avg_sq_absmax);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// Steps matrices along the orthogonal matrix that is nearest to their momentum, so that every direction of a
/// layer learns equally fast:
///
///     B = momentum B + (1 - momentum) g;   O = zeropower_via_newtonschulz(nesterov ? mix of g and B : B)
///     p = p (1 - lr weight_decay) - adjusted lr O
///
/// It is meant for the matrices of hidden layers. Give embeddings, output layers, biases and norms to a group
/// with use_muon(false), which AdamW steps; make_optimizer() (registry.h) makes these groups for a module.
/// FusedOptimizer documents the scaler's path, skipped steps and stochastic rounding, LowBitOptimizer the
/// overrides, where beta1 is the momentum of a matrix.
///
/// Numerics: torch.optim.Muon's, but for 16-bit parameters, which have float32 momentum and are rounded once. The
///           orthogonal matrix is computed in bfloat16, in the order of torch, so that its products differ by
///           their kernels only. inf or nan in the gradient of a matrix makes all of the matrix nan, as in torch.
/// Memory:   4 bytes of state for each element of a matrix; 8 for those of AdamW. A step takes float32 copies of
///           one matrix at a time, and the temporaries of zeropower_via_newtonschulz().
/// Errors:   c10::ValueError for a parameter that is no matrix in a group with use_muon(true), and for options out
///           of range; c10::TypeError for parameters other than float32, bfloat16 and float16.
/// Source:   Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; Liu et al. 2025,
///           arXiv:2502.16982 (match_rms_adamw).
/// Example:  muon_test.cpp, Muon.FollowsItsFormula
class Muon : public LowBitOptimizer {
 public:
  explicit Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                const MuonOptions& defaults = {}, const FusedOptions& options = {})
      : Muon("Muon", 32, groups, defaults, {0, options.stochastic_rounding, options.seed}) {}
  explicit Muon(std::vector<at::Tensor> parameters, const MuonOptions& defaults = {},
                const FusedOptions& options = {})
      : Muon({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults, options) {}

  void save(torch::serialize::OutputArchive& archive) const final;
  /// Errors: c10::ValueError for a file of another optimizer, of other parameters, or whose states have other
  ///         bits. Nothing has changed then.
  void load(torch::serialize::InputArchive& archive) final;
  std::vector<StateFormat> state_formats(const at::Tensor& parameter) const final;
  bool is_in_bitsandbytes() const final { return false; }

 protected:
  Muon(const char* name, int64_t bits, const std::vector<torch::optim::OptimizerParamGroup>& groups,
       const MuonOptions& defaults, const LowBitOptions& options);

  const torch::optim::OptimizerOptions& checked_options(
      const torch::optim::OptimizerParamGroup& group) const final;
  void add_state(Slot& slot, const torch::optim::OptimizerOptions& options, at::ScalarType dtype) final;
  void update(const std::vector<Slot>& slots, const Batch& batch,
              const torch::optim::OptimizerOptions& options) final;
  Hyperparameters hyperparameters(const torch::optim::OptimizerOptions& options) const final;

 private:
  void update_matrix(const Slot& slot, const Batch& batch, size_t index, const MuonOptions& options);
  void write_matrix(const Slot& slot, const at::Tensor& parameter, const at::Tensor& value,
                    const at::Tensor& found_inf);

  const char* name_;
};

/// Muon whose momentum has 8 bits, and whose AdamW has 8-bit states: 1.02 bytes of state for each element of a
/// matrix, where AdamW has 8. The states of a parameter below LowBitOptions::min_8bit_size are float32.
/// Example: muon_test.cpp, Muon8bit.StateIs70PercentSmallerThanThatOfAdamW
class Muon8bit final : public Muon {
 public:
  explicit Muon8bit(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                    const MuonOptions& defaults = {}, const LowBitOptions& options = {})
      : Muon("Muon8bit", 8, groups, defaults, options) {}
  explicit Muon8bit(std::vector<at::Tensor> parameters, const MuonOptions& defaults = {},
                    const LowBitOptions& options = {})
      : Muon8bit({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults, options) {}
};

}  // namespace mantissa
