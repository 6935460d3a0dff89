// Tests what a memory plan does to its surroundings: random numbers, profilers, warnings, errors and signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/torch.h>

#include "mantissa/trainer/memory_plan.h"
#include "mantissa/trainer/memory_plan_test_support_internal.h"
#include "mantissa/trainer/test_support_internal.h"

namespace mantissa::memory_plan_surroundings_test {
namespace {

using memory_plan_test_support::OneLayer;
using memory_plan_test_support::some_batch;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

TEST(MemoryPlanSurroundings, RandomNumbersContinueAsIfNothingHadHappened) {
  struct Dropping final : OneLayer {
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      return torch::dropout(OneLayer::training_step(batch, index), 0.5, /*train=*/true);
    }
  };
  Dropping task;
  const Batch batch = some_batch();
  torch::manual_seed(7);
  const at::Tensor want = torch::rand({4});
  torch::manual_seed(7);
  plan_memory(task, batch, {.device = "cpu"});
  EXPECT_TRUE(torch::equal(torch::rand({4}), want));
}

TEST(MemoryPlanSurroundings, ABatchThatTeachesNothingIsRefused) {
  OneWeight task;
  const Batch left_out{torch::full({1, 1}, -1.0), torch::zeros({1}, at::kLong), {}};
  EXPECT_THAT([&] { plan_memory(task, left_out, {.device = "cpu"}); },
              ThrowsMessage<c10::ValueError>(HasSubstr("took no optimizer step on this batch")));
}

TEST(MemoryPlanSurroundings, NothingCountsAnyMoreAfterAnError) {
  OneWeight task;
  task.throws_at = 1;
  const Batch batch{torch::ones({1, 1}), torch::zeros({1}, at::kLong), {}};
  EXPECT_THROW(plan_memory(task, batch, {.device = "cpu"}), std::runtime_error);
  EXPECT_EQ(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE), nullptr);
}

struct Profiler final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t, size_t, size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return false; }
};

/// Frees enough blocks from before the count to make libtorch's allocator warn.
struct Freeing final : OneLayer {
  Freeing() {
    for (int i = 0; i < 1001; ++i) older.push_back(torch::zeros({16}));
  }
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    older.clear();
    return OneLayer::training_step(batch, index);
  }
  std::vector<at::Tensor> older;
};

/// A memory profiler, as the CPU's allocator sees it.
struct MemoryProfiler final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t, size_t, size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return true; }
};

TEST(MemoryPlanSurroundings, BlocksOlderThanTheCountEndWithoutWarningAndAProfilersAsBefore) {
  const std::string warning = "Memory block of unknown size was allocated before the profiling started";
  testing::internal::CaptureStderr();
  {
    Freeing task;
    plan_memory(task, some_batch(), {.device = "cpu"});
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr(warning)));
  testing::internal::CaptureStderr();
  {
    Freeing task;
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<MemoryProfiler>());
    task.older.clear();
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(warning));
}

TEST(MemoryPlanSurroundings, AProfilerIsLeftAlone) {
  OneLayer task;
  const auto profiler = std::make_shared<Profiler>();
  const c10::DebugInfoGuard profiling(c10::DebugInfoKind::PROFILER_STATE, profiler);
  EXPECT_THAT([&] { plan_memory(task, some_batch(), {.device = "cpu"}); },
              ThrowsMessage<c10::Error>(HasSubstr("a profiler is active in this thread")));
  EXPECT_EQ(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE), profiler.get());
}

TEST(MemoryPlanSurroundings, ASignalLeavesNoHalfOfIt) {
  OneWeight task;
  task.raise_at = 1;
  const Batch batch{torch::ones({1, 1}), torch::zeros({1}, at::kLong), {}};
  EXPECT_THAT([&] { plan_memory(task, batch, {.device = "cpu"}); },
              ThrowsMessage<c10::Error>(HasSubstr("signal 2 interrupted the count")));
}

}  // namespace
}  // namespace mantissa::memory_plan_surroundings_test
