#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "mantissa/trainer/callback.h"

namespace mantissa {

/// Logs what a fit takes of the machine, with each row of a step (log_every_n_steps), as
/// "DeviceStatsMonitor.on_train_batch_end/NAME".
///
/// Of the host, where the system tells (Linux): cpu_percent, cpu_vm_percent, cpu_swap_percent, of the whole
/// machine, as Lightning has them from psutil; process_cpu_percent (100: one core busy),
/// process_resident_bytes, process_peak_resident_bytes, process_threads, of this process alone. Percents of
/// time are since the row before. Of a GPU what libtorch's allocator holds, under the names of
/// torch.cuda.memory_stats(): allocated_bytes.all.current, ...
/// Sync:    none.
/// Errors:  c10::ValueError at the start for a Trainer without loggers. What cannot be read is left out.
/// Source:  docs/callbacks/device-stats-monitor.md; Lightning's DeviceStatsMonitor.
/// Example: device_stats_monitor_test.cpp, DeviceStatsMonitor.LogsTheHost
class DeviceStatsMonitor final : public Callback {
 public:
  /// `cpu_stats`: the host's numbers; unset: only where training runs on the CPU.
  explicit DeviceStatsMonitor(std::optional<bool> cpu_stats = std::nullopt) : cpu_stats_(cpu_stats) {}

  void on_fit_start(Trainer& trainer, const FitPlan& plan) override;
  void on_train_start(Trainer& trainer) override;
  void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override;

 private:
  /// Since some moment.
  struct Times {
    double wall = 0, process = 0;              ///< seconds
    double machine_ticks = 0, busy_ticks = 0;  ///< of all cores; 0 where the system does not tell
  };
  static Times times();
  std::map<std::string, double> host_stats();

  std::optional<bool> cpu_stats_;
  Times before_;
};

}  // namespace mantissa
