#include "mantissa/trainer/memory_plan.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/torch.h>

#include "mantissa/core/device.h"
#include "mantissa/optim/adamw.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/trainer/memory_plan_test_support_internal.h"
#include "mantissa/trainer/test_support_internal.h"

namespace mantissa::memory_plan_test {
namespace {

using memory_plan_test_support::kIn;
using memory_plan_test_support::kOut;
using memory_plan_test_support::kSamples;
using memory_plan_test_support::kWeights;
using memory_plan_test_support::OneLayer;
using memory_plan_test_support::some_batch;
using testing::AllOf;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;

TEST(MemoryPlan, EveryNumberOfAModeIsKnown) {
  for (const auto& [mode, bytes] : std::vector<std::pair<std::string, int64_t>>{
           {"32-true", 4}, {"64-true", 8}, {"16-true", 2}, {"bf16-true", 2}, {"16-mixed", 4}}) {
    OneLayer task(/*momentum=*/0.9);
    const MemoryPlan plan = plan_memory(task, some_batch(), {.precision = mode, .device = "cpu"});
    EXPECT_EQ(plan.precision, mode);
    EXPECT_EQ(plan.weights, kWeights * bytes) << mode;
    EXPECT_EQ(plan.buffers, 3 * bytes) << mode;
    EXPECT_EQ(plan.masters, 0) << mode;
    EXPECT_EQ(plan.gradients, kWeights * bytes) << mode;
    EXPECT_EQ(plan.optimizer_states, kWeights * bytes) << mode;
    if (mode.ends_with("true")) {
      EXPECT_EQ(plan.activations, (kSamples * kOut + 1) * bytes) << mode << ": relu's result and the loss";
    } else {
      // relu's result in half its size, the loss, and casts of the input and, without a kernel of ours, of
      // the weight.
      const int64_t result = kSamples * kOut * 2, casts = (kSamples * kIn + kWeights) * 2;
      EXPECT_THAT(plan.activations, AllOf(Ge(result), Le(result + casts + 64))) << mode;
    }
    EXPECT_EQ(plan.total(), (kWeights * 3 + 3) * bytes + plan.activations) << mode;
    EXPECT_GE(plan.peak, plan.total()) << mode;
    // 16-bit kernels may copy operands for a while, depending on the CPU.
    if (bytes > 2 && mode != "16-mixed") {
      EXPECT_LE(plan.peak, 2 * plan.total()) << mode;
    }
  }
}

TEST(MemoryPlan, BuffersOfEveryLayoutCount) {
  OneLayer task;
  const auto plan = [&] {
    return plan_memory(task, some_batch(), {.precision = "32-true", .device = "cpu"});
  };
  const MemoryPlan dense = plan();
  task.net->register_buffer("sparse", torch::eye(3).to_sparse());
  EXPECT_EQ(plan().buffers, dense.buffers + 3 * (4 + 2 * 8)) << "three values, each with two indices";
  if (!at::hasMKLDNN()) return;
  task.net->register_buffer("opaque", torch::ones({4, 4}).to_mkldnn());
  const MemoryPlan all = plan();
  EXPECT_EQ(all.buffers, dense.buffers + 60 + 64) << "it has no storage";
  EXPECT_EQ(all.activations, dense.activations) << "no buffer is one";
}

TEST(MemoryPlan, GradientsOfAnEarlierPassChangeNothing) {
  const auto plan = [](bool has_gradients) {
    OneLayer task;
    task.net->register_parameter("unused", torch::ones({5}));
    if (has_gradients)
      for (at::Tensor& parameter : task.net->parameters())
        parameter.mutable_grad() = torch::ones_like(parameter);
    return plan_memory(task, some_batch(), {.precision = "32-true", .device = "cpu"});
  };
  const MemoryPlan with = plan(true), without = plan(false);
  EXPECT_EQ(with.gradients, without.gradients);
  EXPECT_EQ(with.activations, without.activations);
  EXPECT_EQ(with.peak, without.peak);
}

/// Keeps one byte of each forward pass.
struct KeepsAByte final : OneLayer {
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    kept = torch::ones({1}, at::kByte);
    return OneLayer::training_step(batch, index);
  }
  at::Tensor kept;
};

TEST(MemoryPlan, TheSmallestActivationCounts) {
  OneLayer task;
  KeepsAByte with_byte;
  const TrainerOptions options{.precision = "32-true", .device = "cpu"};
  EXPECT_EQ(plan_memory(with_byte, some_batch(), options).activations,
            plan_memory(task, some_batch(), options).activations + 1);
}

TEST(MemoryPlan, MastersAreFloat32WithTheirGradientsAndStates) {
  OneLayer task(/*momentum=*/0.9);
  TrainerOptions options{.precision = "bf16-true", .device = "cpu"};
  options.precision_options.master_weights = true;
  const MemoryPlan plan = plan_memory(task, some_batch(), options);
  EXPECT_EQ(plan.weights, kWeights * 2);
  EXPECT_EQ(plan.masters, kWeights * 4);
  EXPECT_EQ(plan.gradients, kWeights * 4);
  EXPECT_EQ(plan.optimizer_states, kWeights * 4);
}

struct WithOptimizer final : OneLayer {
  std::vector<OptimizerConfig> configure_optimizers() override {
    if (fused) {
      return {{std::make_shared<FusedAdamW>(net->parameters(), AdamWOptions(0.1),
                                            FusedOptions{.stochastic_rounding = true})}};
    }
    return {{std::make_shared<AdamW>(net->parameters(), AdamWOptions(0.1))}};
  }
  bool fused = false;
};

TEST(MemoryPlan, StatesAreThoseThatTheOptimizerReallyMakes) {
  for (const bool fused : {false, true}) {
    WithOptimizer task;
    task.fused = fused;
    const MemoryPlan plan = plan_memory(task, some_batch(), {.precision = "bf16-true", .device = "cpu"});
    const int64_t moments = 2 * kWeights * (fused ? 4 : 2);  // stochastic rounding wants float32 moments
    EXPECT_THAT(plan.optimizer_states, AllOf(Ge(moments), Le(moments + 8))) << "and a step counter";
  }
}

struct WithFirstState final : OneLayer {
  std::vector<OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<torch::optim::Adagrad>(net->parameters())}};
  }
};

TEST(MemoryPlan, AStateFromBeforeTheFirstStepIsNoActivationAndIsInThePeak) {
  WithFirstState task;
  const MemoryPlan plan = plan_memory(task, some_batch(), {.precision = "32-true", .device = "cpu"});
  EXPECT_EQ(plan.optimizer_states, kWeights * 4);
  EXPECT_EQ(plan.activations, (kSamples * kOut + 1) * 4) << "relu's result and the loss";
  EXPECT_GE(plan.peak, plan.total());
}

/// A mode whose state has tensors: one from the beginning, and one that its first forward pass makes.
class WithTensors final : public Precision {
 public:
  static constexpr int64_t kFirst = 1000, kLater = 3000;
  WithTensors() : Precision("with-tensors") {}
  Scope forward_context() const override {
    if (!later_.defined()) later_ = torch::zeros({kLater}, at::kByte);
    return {};
  }
  StateDict state_dict() const override {
    StateDict state{{"first", first_}};
    if (later_.defined()) state["lists"] = StateList{later_, later_.narrow(0, 0, 2)};
    return state;
  }

 private:
  at::Tensor first_ = torch::zeros({kFirst}, at::kByte);
  mutable at::Tensor later_;
};

TEST(MemoryPlan, TheStateOfAModeOfOnesOwnIsCounted) {
  OneLayer plain, task;
  const MemoryPlan without = plan_memory(plain, some_batch(), {.precision = "32-true", .device = "cpu"});
  const MemoryPlan plan =
      plan_memory(task, some_batch(), {.precision_plugin = std::make_shared<WithTensors>(), .device = "cpu"});
  EXPECT_EQ(without.mode_states, 0);
  EXPECT_EQ(plan.mode_states, WithTensors::kFirst + WithTensors::kLater);
  EXPECT_EQ(plan.activations, without.activations);
  EXPECT_EQ(plan.total(), without.total() + plan.mode_states);
  EXPECT_EQ(plan.peak, without.peak + plan.mode_states);
}

/// Counts the bytes that the CPU's allocator has handed out and not taken back.
struct AllBytes final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void* block, int64_t bytes, size_t, size_t, c10::Device) override {
    now += bytes > 0 ? bytes : -blocks[block];
    blocks[block] = std::max<int64_t>(bytes, 0);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::map<void*, int64_t> blocks;
  int64_t now = 0;
};

/// Measures what exists when a backward pass begins, and the gradients that it makes.
struct Measuring final : Callback {
  explicit Measuring(const AllBytes& all_bytes) : all(all_bytes) {}
  void on_before_backward(Trainer& /*trainer*/, const at::Tensor& /*loss*/) override { bytes = all.now; }
  void on_before_optimizer_step(Trainer& /*trainer*/, torch::optim::Optimizer& optimizer) override {
    for (const at::Tensor& parameter : main_params(optimizer))
      bytes += static_cast<int64_t>(parameter.grad().nbytes());
  }
  const AllBytes& all;
  int64_t bytes = 0;
};

/// Returns what the third step of a run holds, of everything that was made for the run.
int64_t measured_bytes(const Batch& batch, TrainerOptions options) {
  const auto all = std::make_shared<AllBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, all);
  const auto measuring = std::make_shared<Measuring>(*all);
  options.callbacks = {measuring};
  OneLayer task(/*momentum=*/0.9);
  ListLoader train({batch, batch, batch});
  Trainer(options).fit(task, train);
  return measuring->bytes;
}

TEST(MemoryPlan, IsWhatARunHolds) {
  struct Case {
    const char* mode;
    PrecisionOptions precision;
    at::ScalarType input;
  };
  const std::vector<Case> cases{
      {"32-true", {}, at::kFloat},
      {"16-mixed", {.init_scale = 1}, at::kFloat},
      {"bf16-true", {.master_weights = true}, at::kBFloat16},
      {"fp8-mixed", {.fp8_first_and_last = true}, at::kFloat},
      {"fp8-mixed", {.recipe = MXFP8BlockScaling(), .fp8_first_and_last = true}, at::kFloat},
      {"transformer-engine", {.master_weights = true, .fp8_first_and_last = true}, at::kBFloat16},
      {"transformer-engine", {.fp8_first_and_last = true, .fp8_primary_weights = true}, at::kBFloat16},
      {"int8-training", {.init_scale = 1}, at::kFloat}};
  for (const Case& each : cases) {
    Batch batch = some_batch();
    batch.data = batch.data.to(each.input);  // the mode takes it as it is, and makes no copy
    const TrainerOptions options{
        .precision = each.mode, .precision_options = each.precision, .device = "cpu", .max_epochs = 1};
    OneLayer task(/*momentum=*/0.9);
    const MemoryPlan plan = plan_memory(task, batch, options);
    const int64_t measured = measured_bytes(batch, options);
    EXPECT_THAT(measured, AllOf(Ge(plan.total()), Le(plan.total() + 64))) << each.mode;
  }
}

struct Overflowing final : OneLayer {
  using OneLayer::OneLayer;
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    return OneLayer::training_step(batch, index) * kInf;
  }
};

TEST(MemoryPlan, AStepThatTheScaleWouldSkipIsCountedAllTheSame) {
  Overflowing task(/*momentum=*/0.9);
  const MemoryPlan plan = plan_memory(task, some_batch(), {.precision = "16-mixed", .device = "cpu"});
  EXPECT_EQ(plan.optimizer_states, kWeights * 4);
}

struct Tied final : OneLayer {
  Tied() { net->register_parameter("again", net->weight); }
};

TEST(MemoryPlan, ATiedWeightCountsOnce) {
  Tied task;
  const MemoryPlan plan = plan_memory(task, some_batch(), {.device = "cpu"});
  EXPECT_EQ(plan.weights, kWeights * 4);
  EXPECT_EQ(plan.gradients, kWeights * 4);
  EXPECT_EQ(plan.optimizer_states, 0) << "SGD without momentum has none";
}

struct Wasteful final : OneLayer {
  static constexpr int64_t kTemporary = 1 << 20;
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    torch::zeros({kTemporary}, at::kByte);
    return OneLayer::training_step(batch, index);
  }
};

TEST(MemoryPlan, TemporariesAreInThePeakAlone) {
  Wasteful task;
  const MemoryPlan plan = plan_memory(task, some_batch(), {.device = "cpu"});
  EXPECT_LT(plan.activations, Wasteful::kTemporary);
  // While the temporaries exist, there are only the weights, the buffers and the gradients besides.
  EXPECT_EQ(plan.peak, Wasteful::kTemporary + plan.weights + plan.buffers + plan.gradients);
}

struct WastefulAtFirst final : OneLayer {
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    if (index == 0) torch::zeros({Wasteful::kTemporary}, at::kByte);
    return OneLayer::training_step(batch, index);
  }
};

TEST(MemoryPlan, WhatOnlyTheFirstStepNeedsIsNotInThePeak) {
  WastefulAtFirst task;
  const MemoryPlan plan = plan_memory(task, some_batch(), {.device = "cpu"});
  EXPECT_LT(plan.peak, Wasteful::kTemporary) << "the second step is like all that follow";
}

struct OfImages final : OneLayer {
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    is_channels_last = batch.data.is_contiguous(at::MemoryFormat::ChannelsLast);
    return OneLayer::training_step({batch.data.mean({2, 3}), batch.target, {}}, index);
  }
  bool is_channels_last = false;
};

TEST(MemoryPlan, ACopyOfTheBatchIsNoActivation) {
  const Batch images{torch::rand({kSamples, kIn, 4, 4}), torch::zeros({kSamples}, at::kLong), {}};
  const auto activations = [&](bool is_copied) {
    OfImages task;
    const MemoryPlan plan = plan_memory(task, images, {.device = "cpu", .channels_last = is_copied});
    EXPECT_EQ(task.is_channels_last, is_copied);
    return plan.activations;
  };
  EXPECT_EQ(activations(true), activations(false));
}

struct StepsItself final : OneLayer {
  bool automatic_optimization() const override { return false; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    const auto sgd = [](const at::Tensor& weight) {
      return std::make_shared<torch::optim::SGD>(std::vector{weight},
                                                 torch::optim::SGDOptions(0.1).momentum(0.9));
    };
    net->register_parameter("other", torch::rand({kIn, kOut}));
    return {{sgd(net->weight)}, {sgd(net->named_parameters()["other"])}};
  }
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    for (const size_t i : {0, 1}) {
      const at::Tensor loss = i == 0 ? OneLayer::training_step(batch, index)
                                     : torch::relu(batch.data.mm(net->named_parameters()["other"])).sum();
      optimizers(i).zero_grad();
      manual_backward(loss);
      optimizers(i).step();
    }
    return {};
  }
};

TEST(MemoryPlan, StepsOfTheTasksOwnAreCounted) {
  StepsItself task;
  const MemoryPlan plan = plan_memory(
      task, some_batch(), {.device = "cpu", .accumulate_grad_batches = 4, .gradient_clip_val = 1});
  EXPECT_EQ(plan.weights, 2 * kWeights * 4);
  EXPECT_EQ(plan.gradients, 2 * kWeights * 4);
  EXPECT_EQ(plan.optimizer_states, 2 * kWeights * 4);
  // The second pass is counted without the gradient and the state that the first one left.
  EXPECT_THAT(plan.activations,
              AllOf(Ge((kSamples * kOut + 1) * 4), Le((kSamples * kOut + kWeights + 16) * 4)));
}

TEST(MemoryPlan, CountsOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  OneLayer task(/*momentum=*/0.9);
  const MemoryPlan plan = plan_memory(task, some_batch(), {.precision = "bf16-true", .device = "cuda"});
  EXPECT_EQ(plan.weights, kWeights * 2);
  EXPECT_EQ(plan.optimizer_states, kWeights * 2);
  EXPECT_THAT(plan.activations, AllOf(Ge(kSamples * kOut * 2), Le(kSamples * kOut * 2 + 1024)));
  EXPECT_GE(plan.peak, plan.total());
}

TEST(MemoryPlan, TakesTwoBatches) {
  OneWeight task;
  plan_memory(task, {torch::ones({1, 1}), torch::zeros({1}, at::kLong), {}}, {.device = "cpu"});
  EXPECT_EQ(std::count(task.trace.begin(), task.trace.end(), 'f'), 2);
}

TEST(MemoryPlan, IsOfTheRunThatTheOptionsDescribe) {
  struct Looks final : OneLayer {
    at::Tensor training_step(const Batch& batch, int64_t index) override {
      benchmark = at::globalContext().benchmarkCuDNN();
      return OneLayer::training_step(batch, index);
    }
    bool benchmark = false;
  } task;
  OneLayer apex;
  for (const std::string level : {"O1", "O2"}) {
    const TrainerOptions flags{.amp_backend = "apex", .amp_level = level, .device = "cpu"};
    EXPECT_EQ(plan_memory(apex, some_batch(), flags).precision, level);
  }
  const bool before = at::globalContext().benchmarkCuDNN();
  for (const bool benchmark : {true, false}) {
    plan_memory(task, some_batch(), {.device = "cpu", .benchmark = benchmark});
    EXPECT_EQ(task.benchmark, benchmark);
  }
  EXPECT_EQ(at::globalContext().benchmarkCuDNN(), before);
  const auto error = [&](const TrainerOptions& options) {
    return error_of([&] { plan_memory(task, some_batch(), options); });
  };
  EXPECT_THAT(error({.cpu_kernels = "none/of/these", .device = "cpu"}), HasSubstr("none/of/these"));
  EXPECT_THAT(error({.device = "abacus"}), HasSubstr("abacus"));
  EXPECT_THAT(error({.device = "cpu", .gradient_clip_val = -1}), HasSubstr("gradient_clip_val"));
  EXPECT_THAT(error({.device = "cpu", .gradient_clip_algorithm = "valeu"}), HasSubstr("valeu"));
}

}  // namespace
}  // namespace mantissa::memory_plan_test
