#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "mantissa/core/step_scaling.h"
#include "mantissa/optim/state_format.h"

namespace mantissa {

/// What holds for a whole fused optimizer, whatever its groups' options.
struct FusedOptions {
  /// Computes the update of bfloat16 and float16 parameters in float32 and rounds the new weight up or down
  /// at random (stochastic_round.h), so that updates below half its last place are not lost. Parameters of
  /// other dtypes are updated as without.
  /// Memory: the moments of 16-bit parameters are float32, since a running mean whose rate is 0.999 stands
  ///         still in bfloat16. Adam: 12 bytes a parameter with its gradient; 8 without this, 16 with float32
  ///         weights. SGD with momentum: 8, 6 and 12.
  bool stochastic_rounding = false;
  /// Names the sequence of draws; a file that is loaded brings its own. Unset: drawn from libtorch's
  /// generator, so that torch::manual_seed() decides it and two optimizers do not round alike.
  std::optional<uint64_t> seed = std::nullopt;
};

/// What the fused optimizers have in common: one kernel call updates all parameters of one group, device and
/// dtype, divides by `grad_scale` and drops the step if `found_inf` is not 0, with no value read on the host.
///
/// Equal to Python's optimizer with fused=True bit for bit on the CPU, except where that one errs:
/// - `found_inf` other than 0 and 1, as a sum over devices is, drops the step too; Python takes it, inf and
///   all.
/// - A gradient or a moment laid out in memory otherwise than its parameter is brought into its order; Python
///   pairs elements by their place in memory on the CPU. Parameters with gaps are refused; Python writes past
///   them.
/// - In FusedSGD as said there.
///
/// Numerics: does not depend on the number of threads on the CPU.
/// Sync:     none, and none in GradScaler::step(); the step counters are taken back on the device. A step can
///           be captured in a CUDA graph: take one before, so that moments and counters exist. Replays use
///           the learning rate of the capture.
/// Errors:   as of the unfused kin; c10::TypeError for dtypes other than float64, float32, float16 and
///           bfloat16, c10::ValueError for a parameter whose memory has gaps, c10::Error for any sparse
///           gradient; c10::ValueError in load() for another optimizer's file and for one of other
///           parameters. Nothing has changed then.
class FusedOptimizer : public torch::optim::Optimizer, public StepSupportsAmpScaling, public HasStateFormats {
 public:
  /// libtorch's, but that the group keeps its options with every libtorch: see SGD::add_param_group().
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// Updates every parameter that has a gradient. With `closure`, calls it first with gradients enabled and
  /// returns what it returned; without, returns an undefined tensor. Where grad_scale is set, gradients are
  /// unscaled after it, unless the step was dropped.
  at::Tensor step(LossClosure closure = nullptr) final;

 protected:
  struct Slot;
  struct Batch;

  FusedOptimizer(const char* name, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 std::unique_ptr<torch::optim::OptimizerOptions> defaults, const FusedOptions& options);

  /// What the kernel calls of `group` are to be given; throws for another optimizer's.
  virtual const torch::optim::OptimizerOptions& checked_options(
      const torch::optim::OptimizerParamGroup& group) const = 0;
  /// Adds to `slot`, which has its parameter, what its update needs: states of `dtype` and the counter.
  virtual void add_state(Slot& slot, const torch::optim::OptimizerOptions& options, at::ScalarType dtype) = 0;
  virtual void call_kernel(const Batch& batch, const torch::optim::OptimizerOptions& options) const = 0;
  /// After the kernel calls for `slots`, all of one batch.
  virtual void finish(const std::vector<Slot>& slots, const Batch& batch);
  /// Whether `parameter` is updated in float32 and rounded to nearest, for a kernel that fails in its dtype.
  virtual bool needs_float32(const at::Tensor& parameter) const;

  /// The seed and the number of the draws' stream, to continue bit for bit.
  void save_draws(torch::serialize::OutputArchive& archive) const;
  void load_draws(torch::serialize::InputArchive& archive);

 private:
  void check() const;
  std::vector<std::vector<Slot>> batches(const torch::optim::OptimizerParamGroup& group,
                                         const torch::optim::OptimizerOptions& options, uint64_t& draws);
  void update_in_float32(const std::vector<Slot>& slots, const Batch& batch,
                         const torch::optim::OptimizerOptions& options);
  /// Elsewhere than on the CPU: `stream_` as a number on `device`.
  const at::Tensor& stream_on(at::Device device);
  void count_step();
  bool rounds_stochastically(const at::Tensor& parameter) const;

  const char* name_;
  bool stochastic_rounding_;
  uint64_t seed_;
  /// How often step() was called, dropped steps included: the host does not know those. A dropped step
  /// changes no weight, because rounding leaves what 16 bits hold as it is, and the next has draws of its
  /// own.
  uint64_t stream_ = 0;
  /// The same, 0-dim int64, for each other device with 16-bit weights: the replays of a CUDA graph count on.
  std::vector<std::pair<at::Device, at::Tensor>> streams_;
};

}  // namespace mantissa
