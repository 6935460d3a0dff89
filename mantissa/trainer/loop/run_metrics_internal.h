#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "mantissa/trainer/loop/progress_internal.h"
#include "mantissa/trainer/loop/run_part_internal.h"
#include "mantissa/trainer/metrics.h"

namespace mantissa {

/// The measurements of a run: means over the current epoch, and the newest value of every metric.
class RunMetrics final : public RunPart {
 public:
  /// See Trainer::callback_metrics().
  const Metrics& newest() const { return newest_; }
  /// The metrics of the last epoch. If training and validation log one name, validation's value counts.
  const Metrics& of_epoch() const { return epoch_; }
  /// See Trainer::metric_now().
  std::optional<double> value_now(const std::string& name, const Progress& progress) const;
  /// Collects the values logged in the current training batch.
  MeanMetrics& batch() { return batch_; }

  void begin_epoch();
  /// Ends a batch, which counts once its window has ended: a resumed run computes the batches of an open
  /// window again.
  void end_batch(bool ends_window);
  /// Computes the means of training over all processes.
  void end_training(const FitProgress& progress, Strategy& strategy);
  void end_epoch();
  void set_validation(const Metrics& result);
  void set_test(Metrics result) { newest_ = std::move(result); }

  void save(StateDict& state) const override;
  void load(const StateReader& state, Differences& differences) override;

 private:
  Metrics newest_, epoch_, validation_;
  /// Values of this epoch's complete windows, of the open window's batches, and of the current batch.
  MeanMetrics training_, window_, batch_;
  int64_t measured_batches_ = -1;  ///< total_batches when training's means were last computed
};

}  // namespace mantissa
