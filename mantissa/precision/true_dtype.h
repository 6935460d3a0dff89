#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "mantissa/precision/master_weights.h"
#include "mantissa/precision/scaled.h"

namespace mantissa {

struct TrueDtypeOptions {
  /// Batch norm keeps float32 weights and statistics, which 16 bits round away.
  bool keep_batchnorm_fp32 = false;
  /// The optimizer steps float32 copies of 16-bit weights: see MasterWeights. Call setup_optimizer() then.
  bool master_weights = false;
  /// For kHalf, whose small gradients flush to zero without one. It must allow fp16 gradients unless there
  /// are master weights.
  std::unique_ptr<GradScaler> scaler = nullptr;
  /// The registry's name, where it is not the dtype's own.
  std::string name = {};
};

/// "64-true", "16-true" and "bf16-true": weights, activations and gradients all live in one dtype. With its
/// options also Apex's levels O0, O2 and O3.
///
/// Memory:   the dtype's bytes per weight and again per gradient; no float32 master copy unless asked for.
/// Numerics: without master weights an update below half an ulp of its weight is lost (ulp(1) is 2^-10 in
///           fp16, 2^-7 in bf16), so in 16 bits prefer the mixed modes when the learning rate is small.
///           Complex tensors keep their dtype. With a scaler and no master weights, an optimizer that
///           unscales by itself (the fused ones) is given scaled gradients and divides them in float32;
///           another one's are unscaled in fp16, where what the scale has saved from flushing to zero flushes
///           after all. In fp16 without master weights, an optimizer with an eps below fp16's smallest normal
///           number, 6.1e-5, draws a warning: it divides by numbers that are 0 there.
/// Errors:   c10::ValueError for another dtype, and for options that the dtype cannot use.
/// Source:   spec 1.2, 1.3, section 6.
class TrueDtype final : public ScaledPrecision {
 public:
  /// `dtype`: kDouble, kHalf or kBFloat16; kFloat with a name.
  explicit TrueDtype(at::ScalarType dtype, TrueDtypeOptions options = {});

  /// Floating-point tensors only: libtorch's Module::to(dtype) would also cast integer buffers, such as
  /// BatchNorm's batch counter.
  void convert_module(torch::nn::Module& module) override;
  void setup_optimizer(torch::optim::Optimizer& optimizer) override;
  Scope tensor_init_context() const override;
  Scope forward_context() const override { return tensor_init_context(); }
  at::Tensor convert_input(const at::Tensor& x) const override;
  at::Tensor convert_output(const at::Tensor& y) const override;
  StepResult optimizer_step(torch::optim::Optimizer& optimizer,
                            const std::function<at::Tensor()>& closure = nullptr) override;

 private:
  /// Warns once of an optimizer whose eps is lost in fp16.
  void warn_of_eps(const torch::optim::Optimizer& optimizer);

  at::ScalarType dtype_;
  bool keep_batchnorm_fp32_, use_master_weights_, warned_of_eps_ = false;
  std::set<const torch::optim::Optimizer*> looked_at_;  ///< addresses only
  std::vector<std::unique_ptr<MasterWeights>> master_weights_;
};

/// `y` in the default dtype if it is of a real floating-point dtype, else `y` itself.
at::Tensor to_default_dtype(const at::Tensor& y);

}  // namespace mantissa
