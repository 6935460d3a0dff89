#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "mantissa/core/step_scaling.h"
#include "mantissa/optim/state_format.h"
#include "mantissa/optim/steps_16bit_weights.h"

namespace mantissa {

/// Options of a whole fused optimizer, for all its groups.
struct FusedOptions {
  /// Computes the update of bfloat16 and float16 parameters in float32 and rounds the new weight up or down
  /// at random (stochastic_round.h), so that updates below half its last place are not lost. Parameters of
  /// other dtypes are updated as without this option.
  /// Memory: the moments of 16-bit parameters are float32, because a running mean whose rate is 0.999 does
  ///         not move in bfloat16. Bytes per parameter, with its gradient: Adam takes 12, against 8 without
  ///         this option and 16 with float32 weights; SGD with momentum takes 8, 6 and 12.
  bool stochastic_rounding = false;
  /// Selects the sequence of random draws; loading a file restores its own. Unset: drawn from libtorch's
  /// generator, so that torch::manual_seed() determines it and two optimizers round differently.
  std::optional<uint64_t> seed = std::nullopt;
};

/// The base of the fused optimizers: one kernel call updates all parameters of one group, device and dtype,
/// divides by `grad_scale` and skips the step if `found_inf` is not 0. The host reads no value.
///
/// On the CPU the result equals Python's optimizer with fused=True bit for bit, except where that one errs:
/// - A `found_inf` other than 0 and 1, such as a sum over devices, skips the step too; Python takes the step,
///   with inf in the gradients.
/// - A gradient or a moment whose layout in memory differs from its parameter's is brought into the
///   parameter's layout; Python pairs elements by their place in memory on the CPU. Parameters with gaps are
///   refused; Python writes past them.
/// - FusedSGD lists further exceptions.
///
/// Numerics: on the CPU, does not depend on the number of threads.
/// Sync:     none, and none in GradScaler::step(): after a skipped step the counters are decremented on the
///           device. A CUDA graph can capture a step: take one before, so that moments and counters exist.
///           Replays use the learning rate of the capture.
/// Errors:   as those of the unfused optimizers; c10::TypeError for dtypes other than float64, float32,
///           float16 and bfloat16; c10::ValueError for a parameter whose memory has gaps; c10::Error for any
///           sparse gradient; c10::ValueError in load() for a file of another optimizer or of other
///           parameters. Nothing has changed then.
class FusedOptimizer : public torch::optim::Optimizer,
                       public StepSupportsAmpScaling,
                       public HasStateFormats,
                       public Steps16BitWeights {
 public:
  /// As libtorch's, but the group keeps its options with every version of libtorch (see
  /// SGD::add_param_group()).
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// Updates every parameter that has a gradient. With `closure`, calls it first with gradients enabled and
  /// returns its result; otherwise returns an undefined tensor. If grad_scale is set, the gradients are
  /// unscaled afterwards, unless the step was skipped.
  at::Tensor step(LossClosure closure = nullptr) final;

  /// Whether 16-bit parameters are updated in float32 and rounded at random (see FusedOptions).
  bool updates_in_float32() const override { return stochastic_rounding_; }

 protected:
  struct Slot;
  struct Batch;

  FusedOptimizer(const char* name, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 std::unique_ptr<torch::optim::OptimizerOptions> defaults, const FusedOptions& options);

  /// Returns the options for the kernel calls of `group`; throws for another optimizer's options.
  virtual const torch::optim::OptimizerOptions& checked_options(
      const torch::optim::OptimizerParamGroup& group) const = 0;
  /// Adds what the update needs to `slot`, which already has its parameter: states of `dtype` and the
  /// counter.
  virtual void add_state(Slot& slot, const torch::optim::OptimizerOptions& options, at::ScalarType dtype) = 0;
  virtual void call_kernel(const Batch& batch, const torch::optim::OptimizerOptions& options) const = 0;
  /// Updates all of `batch`, which has the tensors of `slots` in the same order and counters that include this
  /// step. By default it calls the kernel, around which it makes float32 copies where they are needed.
  virtual void update(const std::vector<Slot>& slots, const Batch& batch,
                      const torch::optim::OptimizerOptions& options);
  /// Called after the kernel calls for `slots`, which are all in one batch.
  virtual void finish(const std::vector<Slot>& slots, const Batch& batch);
  /// Whether `parameter` is updated in float32 and rounded to nearest, because the kernel fails in its dtype.
  virtual bool needs_float32(const at::Tensor& parameter) const;

  /// The dtypes of the parameters that the optimizer can update, for the message of its refusal.
  struct Dtypes {
    std::vector<at::ScalarType> all;
    const char* names;
  };
  virtual const Dtypes& dtypes() const;

  /// Whether `parameter` is rounded stochastically. If so, draw_seed() and the stream select the draws: a
  /// number on the CPU, and one in the device's memory elsewhere.
  bool rounds_stochastically(const at::Tensor& parameter) const;
  uint64_t draw_seed() const { return seed_; }
  uint64_t stream() const { return stream_; }
  const at::Tensor& stream_on(at::Device device);

  /// Save and load the seed and the number of the draws' stream, so that a resumed run continues bit for bit.
  void save_draws(torch::serialize::OutputArchive& archive) const;
  void load_draws(torch::serialize::InputArchive& archive);

 private:
  void check() const;
  std::vector<std::vector<Slot>> batches(const torch::optim::OptimizerParamGroup& group,
                                         const torch::optim::OptimizerOptions& options, uint64_t& draws);
  void update_in_float32(const std::vector<Slot>& slots, const Batch& batch,
                         const torch::optim::OptimizerOptions& options);
  void count_step();

  const char* name_;
  bool stochastic_rounding_;
  uint64_t seed_;
  /// The number of step() calls, including skipped steps, which the host does not know about. A skipped step
  /// changes no weight, because rounding does not change a number that 16 bits hold, and the next step has
  /// new draws.
  uint64_t stream_ = 0;
  /// The same count, 0-dim int64, for each other device with 16-bit weights, so that replays of a CUDA graph
  /// can increment it.
  std::vector<std::pair<at::Device, at::Tensor>> streams_;
};

}  // namespace mantissa
