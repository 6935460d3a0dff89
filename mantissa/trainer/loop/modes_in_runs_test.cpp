// Tests what a mode keeps from one fit to the next, and what it refuses before a fit begins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>

#include <torch/torch.h>

#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::modes_in_runs_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Key;

/// The weight of a OneWeight, in a module where it has another name.
struct Wrapped : OneWeight {
  explicit Wrapped(const torch::nn::Linear& of) { net = of; }
  torch::nn::Module& module() override {
    if (outer->is_empty()) outer->push_back(net);
    return *outer;
  }
  torch::nn::Sequential outer;
};

class ModesInRuns : public InFolder {
 protected:
  /// Options of a run that saves checkpoints in folder_.
  TrainerOptions saving(TrainerOptions options) {
    options.callbacks = {std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_})};
    return options;
  }
  /// Options of runs that share a new mode with master weights.
  static TrainerOptions with_masters() {
    return {.precision_plugin = make_precision("bf16-true", at::kCPU, {.master_weights = true}),
            .device = "cpu"};
  }
  std::map<std::string, at::Tensor> saved_masters() {
    const Checkpoint saved = load_newest(folder_).value().checkpoint;
    return master_weights_of(StateReader(saved.state).at("precision").at("state"));
  }
};

TEST_F(ModesInRuns, ACheckpointHasTheNamesOfItsOwnRun) {
  const TrainerOptions shared = with_masters();
  OneWeight task;
  ListLoader train = loader_of({1});
  Trainer(shared).fit(task, train);
  Wrapped wrapped(task.net), rest{OneWeight().net};
  Trainer(saving(shared)).fit(wrapped, train);
  EXPECT_THAT(saved_masters(), ElementsAre(Key("0.weight")));
  Trainer(with_masters()).fit(rest, train, nullptr, folder_);
  EXPECT_EQ(rest.weight(), wrapped.weight());
}

TEST_F(ModesInRuns, ACheckpointHasTheMasterWeightsOfItsOwnRunOnly) {
  const TrainerOptions shared = with_masters();
  OneWeight task, second, rest;
  ListLoader train = loader_of({1}), other = loader_of({3});
  Trainer(shared).fit(task, train);
  Trainer(saving(shared)).fit(second, other);
  EXPECT_EQ(saved_masters().at("weight").item<float>(), -3);
  Trainer(with_masters()).fit(rest, other, nullptr, folder_);
  EXPECT_EQ(rest.weight(), -3);
}

TEST_F(ModesInRuns, ARunResumedWithoutAScaleStartsAtTheInitialOne) {
  OneWeight task, unscaled, resumed;
  ListLoader train = loader_of({kInf, 1}), clean = loader_of({1});
  Trainer trainer({.precision = "16-mixed", .device = "cpu"});
  trainer.fit(task, train);
  EXPECT_EQ(next_scale(trainer.precision()), 32768) << "kept for a fit that is not resumed, as in Lightning";
  Trainer(saving({.device = "cpu"})).fit(unscaled, clean);
  testing::internal::CaptureStderr();
  trainer.fit(resumed, clean, nullptr, folder_);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the scale starts at its initial value"));
  EXPECT_EQ(next_scale(trainer.precision()), 65536);
}

struct Lbfgs : OneWeight {
  std::vector<OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<torch::optim::LBFGS>(net->parameters(), 1.0)}};
  }
};

TEST_F(ModesInRuns, LbfgsIsRefusedBeforeTheSanityValidation) {
  for (const char* mode : {"16-mixed", "O2"}) {
    Lbfgs task;
    ListLoader train = loader_of({1}), val = loader_of({1});
    const auto fit = [&] { Trainer({.precision = mode, .device = "cpu"}).fit(task, train, &val); };
    EXPECT_THAT(error_of(fit), HasSubstr("LBFGS evaluates its loss several times a step")) << mode;
    EXPECT_EQ(task.trace, "") << mode;
  }
}

TEST_F(ModesInRuns, LbfgsIsRefusedWithWindowsOfSeveralBatches) {
  Lbfgs task;
  ListLoader train = loader_of({1, 2});
  EXPECT_THAT(error_of([&] { Trainer({.device = "cpu", .accumulate_grad_batches = 2}).fit(task, train); }),
              HasSubstr("which accumulate_grad_batches=2 cannot follow"));
  EXPECT_EQ(task.trace, "");
}

}  // namespace
}  // namespace mantissa::modes_in_runs_test
