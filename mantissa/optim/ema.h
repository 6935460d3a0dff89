#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/core/state_dict.h"

namespace torch::nn {
class Module;
}
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace mantissa {

struct EmaOptions {
  /// Weight of the past: average = decay * average + (1 - decay) * weight. The average spans about 1 / (1 -
  /// decay) steps.
  double decay = 0.999;
  /// Averages floating-point buffers (batch norm's statistics) too. False: the average uses the module's
  /// current ones.
  bool use_buffers = false;
};

/// The exponential moving average of a module's weights. It often generalises better than the last weights.
///
///     ExponentialMovingAverage ema(*model);
///     ... optimizer.step(); ema.update();          // not after a skipped step
///     { const auto averaged = ema.average_weights(); validate(model); }
///
/// Numerics: equal to torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay), bit for bit, in
///           float32 and wider: the first update() copies, later ones compute average.lerp_(weight, 1 -
///           decay). Averages of 16-bit weights are kept in float32, because at a decay of 0.999 an average
///           in bfloat16 would stop moving; Python keeps the weight's dtype. Integer buffers (batch norm's
///           count of batches) and masks are always the module's own; Python's use_buffers averages those too
///           and drops the fraction.
/// Packed:   packed weights (weights/packed_weight.h) that are frozen are their own average. They are left out everywhere. Ones that
///           train are refused.
/// Memory:   one copy of the weights, in float32 or wider; another while average_weights() is held.
/// Threads:  one at a time.
/// Errors:   c10::ValueError for a decay outside [0, 1), and for a packed weight that trains; c10::Error if the number or the shapes of the
///           module's tensors have changed since the first update().
/// Source:   Polyak and Juditsky 1992; Tarvainen and Valpola 2017, arXiv:1703.01780, section 2.
/// Example:  ema_test.cpp, Ema.AveragesAreThoseOfPython
class ExponentialMovingAverage final : public Stateful {
 public:
  /// Borrows `module`, which may still be moved or converted before the first update().
  explicit ExponentialMovingAverage(torch::nn::Module& module, const EmaOptions& options = {});

  /// Adds the module's current weights to the average; call it after each step that changed them.
  void update();
  int64_t num_updates() const { return num_updates_; }

  /// While it lives, the module has the averaged weights and buffers, written into its own tensors; its
  /// destructor restores the trained ones, also after an exception. Before the first update() nothing
  /// changes.
  /// Threads: do not call update() meanwhile.
  std::shared_ptr<void> average_weights();
  /// Writes the averages into the module for good.
  void copy_to_module();

  /// Returns the values that the module would have after copy_to_module(), under its state_dict() names and
  /// in its dtypes; empty before the first update().
  std::map<std::string, at::Tensor> named_averages() const;
  /// Returns the averages in the order of the module's parameters, then of its buffers.
  const std::vector<at::Tensor>& averages() const { return averages_; }

  void save(torch::serialize::OutputArchive& archive) const;
  /// Errors: c10::Error if the file's tensors do not fit the module's. Nothing has changed then.
  void load(torch::serialize::InputArchive& archive);

  /// Returns the state for a checkpoint: {"num_updates": 3, "averages": [tensor, ...]}.
  /// Memory: copies no tensor.
  StateDict state_dict() const override;
  /// Memory: copies the averages.
  /// Errors: c10::ValueError naming the place; c10::Error as load(). Nothing has changed then.
  void load_state_dict(const StateReader& state) override;

 private:
  std::vector<at::Tensor> tensors() const;
  void check_same(const std::vector<at::Tensor>& now, const std::vector<at::Tensor>& averages) const;
  void take(int64_t num_updates, std::vector<at::Tensor> averages);

  torch::nn::Module& module_;
  EmaOptions options_;
  std::vector<at::Tensor> averages_;
  int64_t num_updates_ = 0;
};

}  // namespace mantissa
