#include "mantissa/trainer/callbacks/device_stats_monitor.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>

#include "mantissa/core/clock_internal.h"
#include "mantissa/core/device.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {
namespace {

/// Reads the numbers in a file of "NAME: NUMBER [kB]" lines such as /proc/meminfo, in its units. Empty
/// without it.
std::map<std::string, double> numbers_in(const char* path) {
  std::map<std::string, double> numbers;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    double number = 0;
    if (colon != std::string::npos && std::istringstream(line.substr(colon + 1)) >> number)
      numbers.emplace(line.substr(0, colon), number);
  }
  return numbers;
}

/// Names and meanings are torch.cuda.memory_stats()'s.
std::map<std::string, double> allocator_stats(at::Device device) {
  if (!device.is_cuda()) return {};
  const auto stats = at::accelerator::getDeviceStats(device.has_index() ? device.index() : 0);
  std::map<std::string, double> named{{"num_alloc_retries", static_cast<double>(stats.num_alloc_retries)},
                                      {"num_ooms", static_cast<double>(stats.num_ooms)},
                                      {"num_device_alloc", static_cast<double>(stats.num_device_alloc)},
                                      {"num_device_free", static_cast<double>(stats.num_device_free)}};
  const auto add = [&](const std::string& name, const auto& by_pool) {
    const auto& all = by_pool[static_cast<size_t>(at::CachingAllocator::StatType::AGGREGATE)];
    named.emplace(name + ".all.current", static_cast<double>(all.current));
    named.emplace(name + ".all.peak", static_cast<double>(all.peak));
  };
  add("allocated_bytes", stats.allocated_bytes);
  add("reserved_bytes", stats.reserved_bytes);
  add("active_bytes", stats.active_bytes);
  add("inactive_split_bytes", stats.inactive_split_bytes);
  return named;
}

}  // namespace

void DeviceStatsMonitor::on_fit_start(Trainer& trainer, const FitPlan& /*plan*/) {
  const TrainerOptions& run = trainer.options();
  TORCH_CHECK_VALUE(!run.loggers.empty() || run.fast_dev_run,
                    "DeviceStatsMonitor: the Trainer has no logger; give it one, or leave the callback out");
}

void DeviceStatsMonitor::on_train_start(Trainer& /*trainer*/) { before_ = times(); }

void DeviceStatsMonitor::on_train_batch_end(Trainer& trainer, const TrainBatch& /*batch*/) {
  if (!trainer.should_log()) return;
  std::map<std::string, double> stats = allocator_stats(trainer.device());
  if (cpu_stats_.value_or(trainer.device().is_cpu())) stats.merge(host_stats());
  MetricValues metrics;
  for (const auto& [name, value] : stats)
    metrics.emplace("DeviceStatsMonitor.on_train_batch_end/" + name, value);
  trainer.log_metrics(metrics);
}

DeviceStatsMonitor::Times DeviceStatsMonitor::times() {
  Times now{.wall = seconds_of(CLOCK_MONOTONIC), .process = seconds_of(CLOCK_PROCESS_CPUTIME_ID)};
  std::ifstream in("/proc/stat");
  std::string cpu;
  in >> cpu;
  // user nice system idle iowait irq softirq steal; the first two include the time of guests.
  for (int i = 0; i < 8; ++i) {
    double ticks = 0;  // and stays 0 where the line has no more numbers
    in >> ticks;
    now.machine_ticks += ticks;
    if (i != 3 && i != 4) now.busy_ticks += ticks;
  }
  return now;
}

std::map<std::string, double> DeviceStatsMonitor::host_stats() {
  std::map<std::string, double> stats;
  const Times now = times();
  const auto add_share = [&](const char* name, double part, double whole) {
    if (whole > 0) stats.emplace(name, 100 * part / whole);
  };
  add_share("process_cpu_percent", now.process - before_.process, now.wall - before_.wall);
  // The iowait time may decrease (proc(5)), and the sum with it.
  const double ticks = now.machine_ticks - before_.machine_ticks;
  add_share("cpu_percent", std::min(now.busy_ticks - before_.busy_ticks, ticks), ticks);
  before_ = now;
  std::map<std::string, double> memory = numbers_in("/proc/meminfo");
  add_share("cpu_vm_percent", memory["MemTotal"] - memory["MemAvailable"], memory["MemTotal"]);
  add_share("cpu_swap_percent", memory["SwapTotal"] - memory["SwapFree"], memory["SwapTotal"]);
  if (memory["MemTotal"] > 0) stats.emplace("cpu_swap_percent", 0);  // there is no swap
  const std::map<std::string, double> self = numbers_in("/proc/self/status");
  if (const auto found = self.find("VmRSS"); found != self.end())
    stats.emplace("process_resident_bytes", found->second * 1024);
  if (const auto found = self.find("Threads"); found != self.end())
    stats.emplace("process_threads", found->second);
  stats.emplace("process_peak_resident_bytes", static_cast<double>(peak_memory_bytes(at::kCPU)));
  return stats;
}

}  // namespace mantissa
