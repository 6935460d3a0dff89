#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "mantissa/trainer/loop/progress_internal.h"
#include "mantissa/trainer/loop/run_part_internal.h"
#include "mantissa/trainer/metrics.h"

namespace mantissa {

/// What a run has measured: means over the epoch that runs, and the newest value of every metric.
class RunMetrics final : public RunPart {
 public:
  /// See Trainer::callback_metrics().
  const Metrics& newest() const { return newest_; }
  /// Of the epoch that ended last; of a metric that training and validation both log, validation's value.
  const Metrics& of_epoch() const { return epoch_; }
  /// See Trainer::metric_now().
  std::optional<double> value_now(const std::string& name, const Progress& progress) const;
  /// Where the training batch that runs is logged.
  MeanMetrics& batch() { return batch_; }

  void begin_epoch();
  /// A batch counts once its window has ended: a resumed run computes the batches of an open window again.
  void end_batch(bool ends_window);
  /// Computes training's means.
  void end_training(const FitProgress& progress);
  void end_epoch();
  void set_validation(const Metrics& result);
  void set_test(Metrics result) { newest_ = std::move(result); }

  void save(StateDict& state) const override;
  void load(const StateReader& state, Differences& differences) override;

 private:
  Metrics newest_, epoch_, validation_;
  /// Of this epoch's whole windows, of the open window's batches, of the batch that runs.
  MeanMetrics training_, window_, batch_;
  int64_t measured_batches_ = -1;  ///< total_batches when training's means were last computed
};

}  // namespace mantissa
