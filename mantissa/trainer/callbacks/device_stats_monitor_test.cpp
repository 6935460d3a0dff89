#include "mantissa/trainer/callbacks/device_stats_monitor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "mantissa/core/clock_internal.h"
#include "mantissa/core/device.h"
#include "mantissa/trainer/test_support_internal.h"

namespace mantissa::device_stats_monitor_test {
namespace {

using testing::HasSubstr;

/// Keeps rows as they are.
class Rows final : public Logger {
 public:
  std::string name() const override { return "rows"; }
  void log_metrics(MetricValues metrics, int64_t step) override {
    for (const auto& [name, value] : metrics) rows[step][name] = value.read();
  }
  void log_hyperparams(const Hyperparameters&) override {}
  std::map<int64_t, Metrics> rows;
};

/// Keeps one core busy for a while.
struct Busy : OneWeight {
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(30))
      volatile_sink = volatile_sink + 1;
    return OneWeight::training_step(batch, index);
  }
  volatile int64_t volatile_sink = 0;
};

/// The statistics of steps 2 and 4, without their prefix.
std::map<int64_t, Metrics> stats(std::optional<bool> cpu_stats, const std::string& device = "cpu") {
  const auto rows = std::make_shared<Rows>();
  Busy task;
  ListLoader train = loader_of({1, 1, 1, 1});
  Trainer({.device = device,
           .callbacks = {std::make_shared<DeviceStatsMonitor>(cpu_stats)},
           .loggers = {rows},
           .log_every_n_steps = 2})
      .fit(task, train);
  const std::string prefix = "DeviceStatsMonitor.on_train_batch_end/";
  std::map<int64_t, Metrics> kept;
  for (const auto& [step, row] : rows->rows)
    for (const auto& [name, value] : row)
      if (name.starts_with(prefix)) kept[step][name.substr(prefix.size())] = value;
  return kept;
}

TEST(DeviceStatsMonitor, LogsTheHost) {
  const auto rows = stats(std::nullopt);
  ASSERT_EQ(rows.size(), 2U);
  for (const auto& [step, row] : rows) {
    EXPECT_EQ(step % 2, 0);
    // Another process may use the core meanwhile.
    EXPECT_GT(row.at("process_cpu_percent"), 1);
    EXPECT_LE(row.at("process_cpu_percent"), 110 * std::max(2U, std::thread::hardware_concurrency()));
    for (const char* name : {"cpu_percent", "cpu_vm_percent", "cpu_swap_percent"}) {
      EXPECT_GE(row.at(name), 0) << name;
      EXPECT_LE(row.at(name), 100) << name;
    }
    EXPECT_GT(row.at("cpu_percent"), 0.05) << "one core is busy";
    EXPECT_GT(row.at("cpu_vm_percent"), 0);
    EXPECT_GE(row.at("process_threads"), 1);
    const double resident = row.at("process_resident_bytes");
    EXPECT_GT(resident, 16 << 20) << "libtorch alone is more";
    EXPECT_EQ(std::fmod(resident, 4096), 0) << "whole pages";
    EXPECT_LE(resident, 1.1 * row.at("process_peak_resident_bytes"));
    EXPECT_LE(row.at("process_peak_resident_bytes"), static_cast<double>(peak_memory_bytes(at::kCPU)));
    EXPECT_FALSE(row.contains("allocated_bytes.all.current"));
  }
}

TEST(DeviceStatsMonitor, AMachineWithoutSwapUsesNone) {
  const std::string memory = content_of("/proc/meminfo"), key = "SwapTotal:";
  const size_t total = memory.find(key);
  if (total == std::string::npos || std::stoll(memory.substr(total + key.size())) != 0)
    GTEST_SKIP() << "this machine has swap";
  EXPECT_EQ(stats(std::nullopt).at(2).at("cpu_swap_percent"), 0);
}

TEST(DeviceStatsMonitor, ARowIsAboutTheTimeSinceTheRowBefore) {
  // Computes in the first two steps, and sleeps in the other two.
  struct BusyThenIdle final : OneWeight {
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      const double begin = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
      if (index < 2) {
        while (seconds_of(CLOCK_PROCESS_CPUTIME_ID) < begin + 0.1) sink = sink + 1;
        busy_until = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
      }
      return OneWeight::training_step(batch, index);
    }
    volatile int64_t sink = 0;
    double busy_until = 0;
  } task;
  const auto rows = std::make_shared<Rows>();
  ListLoader train = loader_of({1, 1, 1, 1});
  Trainer({.device = "cpu",
           .callbacks = {std::make_shared<DeviceStatsMonitor>()},
           .loggers = {rows},
           .log_every_n_steps = 2})
      .fit(task, train);
  const double used = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - task.busy_until;
  EXPECT_LE(rows->rows.at(4).at("DeviceStatsMonitor.on_train_batch_end/process_cpu_percent"),
            100 * used / 0.06);
}

TEST(DeviceStatsMonitor, LeavesTheHostOutIfConfigured) { EXPECT_TRUE(stats(false).empty()); }

TEST(DeviceStatsMonitor, LogsTheAllocatorOfCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const auto rows = stats(std::nullopt, "cuda");
  ASSERT_EQ(rows.size(), 2U);
  for (const auto& [step, row] : rows) {
    EXPECT_GT(row.at("allocated_bytes.all.current"), 0);
    EXPECT_GE(row.at("allocated_bytes.all.peak"), row.at("allocated_bytes.all.current"));
    EXPECT_GE(row.at("reserved_bytes.all.current"), row.at("allocated_bytes.all.current"));
    EXPECT_EQ(row.at("num_ooms"), 0);
    EXPECT_FALSE(row.contains("cpu_percent"));
  }
  EXPECT_TRUE(stats(true, "cuda").at(2).contains("cpu_percent"));
}

TEST(DeviceStatsMonitor, WantsALogger) {
  OneWeight task;
  ListLoader train = loader_of({1});
  const auto monitor = std::make_shared<DeviceStatsMonitor>();
  EXPECT_THAT(error_of([&] { Trainer({.device = "cpu", .callbacks = {monitor}}).fit(task, train); }),
              HasSubstr("DeviceStatsMonitor: the Trainer has no logger"));
  EXPECT_EQ(Trainer({.device = "cpu", .fast_dev_run = true, .callbacks = {monitor}}).fit(task, train).steps,
            1);
}

}  // namespace
}  // namespace mantissa::device_stats_monitor_test
