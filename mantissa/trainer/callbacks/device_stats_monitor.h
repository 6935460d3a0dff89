#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "mantissa/trainer/callback.h"

namespace mantissa {

/// Logs the resources that a fit uses, with each row of a step (log_every_n_steps), as
/// "DeviceStatsMonitor.on_train_batch_end/NAME".
///
/// Host statistics are logged where the system provides them (Linux). cpu_percent, cpu_vm_percent and
/// cpu_swap_percent describe the whole machine, as Lightning takes them from psutil. process_cpu_percent
/// (100: one core busy), process_resident_bytes, process_peak_resident_bytes and process_threads describe
/// this process. Percentages of time cover the time since the previous row.
///
/// GPU statistics are those of libtorch's allocator, named as in torch.cuda.memory_stats(), for example
/// allocated_bytes.all.current.
///
/// Sync:    none.
/// Errors:  c10::ValueError at the start of a fit for a Trainer without loggers. Statistics that cannot be
///          read are left out.
/// Source:  docs/callbacks/device-stats-monitor.md; Lightning's DeviceStatsMonitor.
/// Example: device_stats_monitor_test.cpp, DeviceStatsMonitor.LogsTheHost
class DeviceStatsMonitor final : public Callback {
 public:
  /// `cpu_stats`: whether to log host statistics; unset: only if training runs on the CPU.
  explicit DeviceStatsMonitor(std::optional<bool> cpu_stats = std::nullopt) : cpu_stats_(cpu_stats) {}

  void on_fit_start(Trainer& trainer, const FitPlan& plan) override;
  void on_train_start(Trainer& trainer) override;
  void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override;

 private:
  /// Times since an arbitrary moment.
  struct Times {
    double wall = 0, process = 0;              ///< seconds
    double machine_ticks = 0, busy_ticks = 0;  ///< of all cores; 0 where the system does not report them
  };
  static Times times();
  std::map<std::string, double> host_stats();

  std::optional<bool> cpu_stats_;
  Times before_;
};

}  // namespace mantissa
