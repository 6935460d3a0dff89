#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mantissa/precision/master_weights.h"
#include "mantissa/precision/scaled.h"

namespace mantissa {

struct TrueDtypeOptions {
  /// Batch norm keeps float32 weights and statistics, which 16 bits would round away.
  bool keep_batchnorm_fp32 = false;
  /// The optimizer steps master weights (see MasterWeights); this requires setup_optimizer().
  bool master_weights = false;
  /// For kHalf, whose small gradients flush to zero without a scaler. It must allow fp16 gradients unless
  /// there are master weights.
  std::unique_ptr<GradScaler> scaler = nullptr;
  /// The registry's name, if it is not the dtype's own.
  std::string name = {};
  /// The trait of a mode that derives from this one and multiplies in another format.
  std::optional<Format> layer_products = std::nullopt;
};

/// "64-true", "16-true" and "bf16-true": weights, activations and gradients all have one dtype. With its
/// options it is also Apex's levels O0, O2 and O3.
///
/// Memory:   the dtype's bytes for each weight and again for each gradient; master weights add 6 bytes.
/// Numerics: without master weights an update below half an ulp of its weight is lost (ulp(1) is 2^-10 in
///           fp16, 2^-7 in bf16), so in 16 bits prefer the mixed modes when the learning rate is small.
///           Complex tensors keep their dtype.
///           With a scaler and no master weights, an optimizer that unscales inside its step (a fused one)
///           gets scaled gradients and divides them in float32. Gradients of other optimizers are unscaled in
///           fp16, where the values that the scale has saved from flushing to zero flush after all.
///           In fp16 without master weights, an optimizer whose eps is below fp16's smallest normal number,
///           6.1e-5, causes a warning: it would divide by numbers that are 0 in fp16.
/// State:    the loss scale if there is a scaler; the master weights by the names of their parameters. If
///           several modules have parameters of one name, as both of a GAN may have, the later ones are
///           "0.weight#2", "0.weight#3" and so on, in the order of setup_optimizer().
/// Errors:   c10::ValueError for another dtype, and for options that the dtype cannot use.
/// Source:   docs/modes.md.
class TrueDtype : public ScaledPrecision {
 public:
  /// `dtype`: kDouble, kHalf or kBFloat16; kFloat with a name.
  explicit TrueDtype(at::ScalarType dtype, TrueDtypeOptions options = {});

  at::Tensor model_parameter(const at::Tensor& parameter) const override;
  /// Converts floating-point tensors only: libtorch's Module::to(dtype) would also cast integer buffers, such
  /// as BatchNorm's batch counter.
  void convert_module(torch::nn::Module& module) override;
  void setup_optimizer(torch::optim::Optimizer& optimizer) override;
  void unscale_gradients(torch::optim::Optimizer& optimizer) override;
  at::Tensor clip_gradients(torch::optim::Optimizer& optimizer, double clip_val,
                            GradientClipAlgorithm algorithm = GradientClipAlgorithm::kNorm) override;
  Scope tensor_init_context() const override;
  Scope forward_context() const override { return tensor_init_context(); }
  at::Tensor convert_input(const at::Tensor& x) const override;
  at::Tensor convert_output(const at::Tensor& y) const override;
  StateDict state_dict() const override;
  std::vector<std::string> load_state_dict(const StateReader& state) override;
  void teardown() override;

 protected:
  /// Quantizes the master weights of `optimizer` into the weights that the mode stores in FP8, after a step.
  void store_in_fp8(const torch::optim::Optimizer& optimizer);
  /// Gives weights that the mode stores in FP8 the values of their master weights, before a module is converted again.
  void restore_from_fp8();
  StepResult step(torch::optim::Optimizer& optimizer, const LossClosure& closure) override;
  void check_line_search() const override;

 private:
  struct SetUp {
    std::unique_ptr<MasterWeights> masters;
    int64_t run;  ///< the number of the run that setup_optimizer() was last called in
  };
  struct NamedMaster {
    std::string key;
    at::Tensor weight;
    bool is_repeated;  ///< another master weight has the parameter's name
  };

  /// Warns once if the eps of an optimizer is lost in fp16.
  void warn_about_small_eps(const torch::optim::Optimizer& optimizer);
  /// Returns the master weights that `optimizer` steps; null if it was not set up.
  MasterWeights* masters_of(const torch::optim::Optimizer& optimizer) const;
  /// Makes master weights for parameters that were added to `optimizer` after setup_optimizer().
  void add_masters(torch::optim::Optimizer& optimizer);
  void remember_models(const MasterWeights& masters);
  void begin_run_if_over();
  /// Returns this run's master weights with their keys in a state.
  std::vector<NamedMaster> named_masters() const;

  at::ScalarType dtype_;
  bool keep_batchnorm_fp32_, has_warned_about_eps_ = false;
  WeakMap<at::Tensor, bool> eps_checked_;   ///< the first parameters of optimizers whose eps has been checked
  WeakMap<at::Tensor, at::Tensor> models_;  ///< the model's parameters, by their master weights
  /// Those of earlier runs are here too, because their optimizers may step again.
  std::vector<SetUp> master_weights_;
  int64_t run_ = 0;
  bool is_run_over_ = false;
};

/// Returns `y` in the default dtype if it has a real floating-point dtype, else `y` itself.
at::Tensor to_default_dtype(const at::Tensor& y);

}  // namespace mantissa
