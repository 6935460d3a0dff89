// Tests that a resumed run has the gradients that a task with manual optimization has not used in a step.
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/io/checkpoint.h"
#include "mantissa/io/manifest.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::waiting_gradients_test {
namespace {

using testing::HasSubstr;
using testing::Not;

/// A task that steps by itself, and that a signal may interrupt in one of its batches.
struct Manual : OneWeight {
  bool automatic_optimization() const override { return false; }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    if (++batches == raises_at) std::raise(SIGTERM);
    train(batch.data.to(net->weight.scalar_type()));
    return {};
  }
  virtual void train(const at::Tensor& x) = 0;

  int batches = 0, raises_at = -1;
};

/// Steps after every third batch: a weight, a parameter outside the module, and one that no loss depends on.
struct EveryThird final : Manual {
  std::vector<OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{net->weight, unused, own}, 0.125)}};
  }
  void train(const at::Tensor& x) override {
    manual_backward((net->weight * x).sum() + (own * x).sum());
    if (batches % 3 != 0) return;
    optimizers().step();
    optimizers().zero_grad();
  }
  at::Tensor own = torch::zeros({1}).set_requires_grad(true),
             unused = own.clone().detach().set_requires_grad(true);
};

/// Clips the gradients of odd batches, and uses them in the step of the next batch.
template <typename Optimizer, typename Options>
struct StepsLater final : Manual {
  torch::nn::Module& module() override { return *both; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<Optimizer>(net->parameters(), Options(1.0))},
            {std::make_shared<Optimizer>(other->parameters(), Options(1.0))}};
  }
  void train(const at::Tensor& x) override {
    const size_t own = batches % 2 == 1 ? 0 : 1;
    optimizers(own).zero_grad();
    manual_backward(((own == 0 ? net : other)->weight * x).sum());
    optimizers(own).clip_gradients(2.5);
    if (own == 0) return;
    optimizers(1).step();
    optimizers(0).step();
  }
  torch::nn::Linear other{[] {
    torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(false));
    linear->weight.data().fill_(0);
    return linear;
  }()};
  torch::nn::Sequential both{net, other};
};

class WaitingGradients : public InFolder {
 protected:
  /// Trains on batches 1 to 6 and saves checkpoints in the folder `name`.
  void fit(Task& task, const std::string& name, TrainerOptions options, const std::string& from = "") {
    ListLoader train = loader_of({1, 2, 3, 4, 5, 6});
    options.device = "cpu";
    options.callbacks = {std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder_ / name, .filename = "last"})};
    Trainer(std::move(options)).fit(task, train, nullptr, from.empty() ? "" : folder_ / from);
  }
  /// Trains a task with an interruption in batch `raises_at`; returns the warnings of the resumed run.
  template <typename Task>
  std::string interrupted(Task& rest, int raises_at, const std::string& name, const TrainerOptions& options,
                          const TrainerOptions& resumed_options) {
    Task begun;
    begun.raises_at = raises_at;
    fit(begun, name, options);
    rest.batches = begun.batches;
    testing::internal::CaptureStderr();
    fit(rest, name, resumed_options, name);
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(WaitingGradients, AreThoseOfEveryParameterThatTheOptimizerStepsInEveryMode) {
  struct Case {
    std::string precision;
    bool has_masters;
    std::optional<std::string> scale = std::nullopt;
  };
  for (const Case& c : {Case{"32-true", false}, Case{"bf16-true", false}, Case{"bf16-true", true},
                        Case{"16-mixed", false, "8"}, Case{"O2", true, "8"}}) {
    TrainerOptions options{.precision = c.precision};
    options.precision_options.loss_scale = c.scale;
    if (c.has_masters) options.precision_options.master_weights = true;
    const std::string name = c.precision + (c.has_masters ? "-masters" : "");
    EveryThird all, rest;
    fit(all, name + "-whole", options);
    EXPECT_EQ(all.weight(), -2.625) << name << ": no step overflows";
    EXPECT_EQ(interrupted(rest, 5, name, options, options), "") << name;
    EXPECT_EQ(rest.batches, 6);
    EXPECT_EQ(rest.weight(), all.weight()) << name;
    EXPECT_EQ(rest.own.item<float>(), all.own.item<float>()) << name;
  }
}

TrainerOptions mode(const std::string& name, const std::optional<std::string>& loss_scale = std::nullopt) {
  TrainerOptions options{.precision = name};
  options.precision_options.loss_scale = loss_scale;
  return options;
}

constexpr const char* kDropped = "gradients that no step has used are dropped";

TEST_F(WaitingGradients, OfAnotherModeWaitOnIfTheyMeanTheSame) {
  TrainerOptions masters = mode("bf16-true");
  masters.precision_options.master_weights = true;
  const std::vector<std::pair<TrainerOptions, TrainerOptions>> pairs{
      {mode("32-true"), mode("bf16-mixed")},
      {mode("bf16-mixed"), mode("bf16-true")},
      {mode("32-true"), masters},
      {masters, mode("16-mixed", "none")},
      {mode("32-true"), mode("16-mixed", "8")},   // brought to the scale
      {mode("16-mixed", "8"), mode("O2", "16")},  // to another one
      {mode("16-mixed", "8"), mode("16-mixed", "16")}};
  for (size_t i = 0; i < pairs.size(); ++i) {
    EveryThird rest;
    EXPECT_THAT(interrupted(rest, 5, "run" + std::to_string(i), pairs[i].first, pairs[i].second),
                Not(HasSubstr(kDropped)));
    EXPECT_EQ(rest.weight(), -2.625) << i << ": a step of 1 + 2 + 3, and one of 4 + 5 + 6";
    EXPECT_EQ(rest.own.item<float>(), -2.625F) << i;
  }
}

TEST_F(WaitingGradients, OfALossScaleAreDroppedWithAWarningInAModeWithoutOne) {
  for (const TrainerOptions& unscaled : {mode("16-mixed", "none"), mode("32-true"), mode("bf16-true")}) {
    EveryThird rest;
    const std::string name = *unscaled.precision;
    EXPECT_THAT(interrupted(rest, 5, name, mode("16-mixed", "8"), unscaled), HasSubstr(kDropped)) << name;
    EXPECT_EQ(rest.weight(), -1.5) << name << ": a step of 1 + 2 + 3, and one of 6";
  }
  // Unscaled gradients are dropped too, because without a scaler an overflow would not skip their step.
  StepsLater<torch::optim::SGD, torch::optim::SGDOptions> clipped;
  EXPECT_THAT(interrupted(clipped, 3, "clipped", mode("16-mixed"), mode("32-true")), HasSubstr(kDropped));
}

TEST_F(WaitingGradients, OfAWeightThatIsFrozenNowAreDropped) {
  EveryThird rest;
  rest.net->weight.requires_grad_(false);
  EXPECT_THAT(interrupted(rest, 5, "run", {}, {}), HasSubstr(kDropped));
  EXPECT_EQ(rest.weight(), -0.75) << "a step of 1 + 2 + 3";
  EXPECT_EQ(rest.own.item<float>(), -1.5F);
}

TEST_F(WaitingGradients, ThatWereUnscaledAndClippedAreNotDividedAgain) {
  using Sgd = StepsLater<torch::optim::SGD, torch::optim::SGDOptions>;
  for (const char* precision : {"32-true", "16-mixed"}) {
    const TrainerOptions options{.precision = precision};
    const std::string name = precision;
    Sgd all, rest;
    fit(all, name + "-whole", options);
    EXPECT_NEAR(all.weight(), -6, 1e-3) << "1 + 2.5 + 2.5";
    EXPECT_EQ(interrupted(rest, 3, name, options, options), "");
    EXPECT_EQ(rest.weight(), all.weight()) << name;
    EXPECT_EQ(rest.other->weight.template item<double>(), all.other->weight.template item<double>()) << name;
  }
}

TEST_F(WaitingGradients, ThatWereClippedWhileScaledKeepTheirDivisor) {
  using Sgd = StepsLater<FusedSGD, SGDOptions>;
  TrainerOptions options{.precision = "16-true"};
  options.precision_options.loss_scale = "8";
  Sgd all, rest;
  fit(all, "whole", options);
  EXPECT_NEAR(all.weight(), -6, 0.01);
  EXPECT_EQ(interrupted(rest, 3, "run", options, options), "");
  EXPECT_EQ(rest.weight(), all.weight());
}

struct EveryBatch final : Manual {
  void train(const at::Tensor& x) override {
    optimizers().zero_grad();
    manual_backward((net->weight * x).sum());
    optimizers().step();
  }
};

TEST_F(WaitingGradients, ThatAStepHasUsedAreNotKept) {
  EveryBatch rest;
  EXPECT_EQ(interrupted(rest, 3, "run", {}, {}), "");
  EXPECT_EQ(rest.weight(), -21);
  const Manifest manifest = read_manifest(folder_ / "run" / "last");
  const StateReader waiting = StateReader(manifest.state, "").at("waiting_gradients");
  EXPECT_EQ(waiting.size(), 1U);
  EXPECT_TRUE(waiting.at(0).is_null());
}

TEST_F(WaitingGradients, OfRowsOfATableWaitOn) {
  struct Rows final : Manual {
    std::vector<OptimizerConfig> configure_optimizers() override {
      return {{std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{table}, 0.125)}};
    }
    void train(const at::Tensor& x) override {
      const at::Tensor row = torch::embedding(table, torch::tensor({1}), -1, false, /*sparse=*/true);
      manual_backward((row * x).sum());
      if (batches % 3 != 0) return;
      optimizers().step();
      optimizers().zero_grad();
    }
    at::Tensor table = torch::zeros({3, 1}).set_requires_grad(true);
  } all, rest;
  fit(all, "whole", {});
  EXPECT_EQ(interrupted(rest, 5, "run", {}, {}), "");
  EXPECT_EQ(all.table[1].item<float>(), -2.625F);
  EXPECT_TRUE(rest.table.equal(all.table));
}

TEST_F(WaitingGradients, ThatFitNoParameterAreRefused) {
  EveryThird begun;
  begun.raises_at = 5;
  fit(begun, "run", {});
  const Checkpoint saved = load_checkpoint(folder_ / "run" / "last");
  const auto error_with = [&](const std::string& number, const at::Tensor& gradient) {
    Checkpoint changed = saved;
    StateValue& waiting = changed.state.at("waiting_gradients").get_if<StateList>()->at(0);
    waiting.get_if<StateDict>()->at("gradients").get_if<StateDict>()->insert_or_assign(number, gradient);
    save_checkpoint(folder_ / "changed", changed);
    EveryThird rest;
    return error_of([&] { fit(rest, "rest", {}, "changed"); });
  };
  EXPECT_THAT(error_with("0", at::zeros({3})),
              HasSubstr("has a different shape from its parameter; resume with"));
  EXPECT_THAT(error_with("3", at::zeros({1})), HasSubstr("belong to other parameters; resume with"));
}

TEST_F(WaitingGradients, AreNoneWhereTheTrainerHasStepped) {
  OneWeight begun;
  EveryBatch rest;
  fit(begun, "run", {});
  fit(rest, "rest", {.max_epochs = 2}, "run");
  EXPECT_EQ(rest.batches, 6);
  EXPECT_EQ(rest.weight(), -42);
}

}  // namespace
}  // namespace mantissa::waiting_gradients_test
