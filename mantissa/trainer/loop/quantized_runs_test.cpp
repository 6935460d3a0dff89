// Tests runs in modes with quantized weights: checkpoints, resuming in the same and in another mode, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <torch/torch.h>

#include "mantissa/core/suggest.h"
#include "mantissa/io/checkpoint.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/weights.h"
#include "mantissa/kernels/test_support_internal.h"
#include "mantissa/precision/registry.h"
#include "mantissa/quant/packed_4bit.h"
#include "mantissa/quant/quantized_int8.h"
#include "mantissa/quant/stored_weights.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/callbacks/weight_averaging.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"
#include "mantissa/weights/named_parts.h"
#include "mantissa/weights/packed_weight.h"
#include "mantissa/weights/replace_weight.h"

namespace mantissa::quantized_runs_test {
namespace {

using test::same_bits;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Tensors = std::map<std::string, at::Tensor>;

/// Two layers with a norm between them, whose weight and biases train in every mode.
struct TwoLayers : Task {
  explicit TwoLayers(bool with_rest = true) {
    torch::manual_seed(1);
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(64, 32).bias(with_rest)));
    if (with_rest) net->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})));
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(32, 4).bias(with_rest)));
  }
  torch::nn::Module& module() override { return *net; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<torch::optim::Adam>(net->parameters(), 1e-2)}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    return at::cross_entropy_loss(net->forward(batch.data), batch.target);
  }
  Tensors weights() const {
    Tensors copies;
    for (const auto& [name, tensor] : named_parts(named_weights(*net)))
      copies.emplace(name, tensor.detach().clone());
    return copies;
  }
  torch::nn::Sequential net;
};

ListLoader batches(int count) {
  std::vector<Batch> made;
  for (int i = 0; i < count; ++i) {
    const at::Tensor x = (torch::arange(8 * 64, at::kFloat).view({8, 64}) * 0.37 + i).sin();
    made.push_back({x, torch::arange(8, at::kLong).remainder(4), {}});
  }
  return ListLoader(std::move(made));
}

void expect_same(const Tensors& got, const Tensors& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [name, tensor] : want) EXPECT_TRUE(same_bits(got.at(name), tensor)) << what << " " << name;
}

class QuantizedRuns : public InFolder {
 protected:
  void clear() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }
  TrainerOptions options(const std::string& mode, int64_t epochs, const PrecisionOptions& precision = {},
                         bool averages = false) {
    TrainerOptions made{.precision = mode, .device = "cpu", .max_epochs = epochs};
    made.precision_options = precision;
    if (averages)
      made.callbacks.push_back(
          std::make_shared<EMAWeightAveraging>(EMAWeightAveragingOptions{.ema = {.decay = 0.5}}));
    made.callbacks.push_back(std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_}));
    return made;
  }
  void train(TwoLayers& task, const TrainerOptions& with, const std::filesystem::path& from = {}) {
    ListLoader train = batches(3);
    Trainer(with).fit(task, train, nullptr, from);
  }
  std::string warning_of(TwoLayers& task, const TrainerOptions& with) {
    testing::internal::CaptureStderr();
    train(task, with, folder_);
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(QuantizedRuns, AResumedRunEqualsAnUninterruptedOneBitForBit) {
  for (const bool averages : {false, true})
    for (const Mode& mode : modes()) {
      if (!mode.traits.frozen_weights) continue;
      TwoLayers whole, begun, resumed;
      const Tensors before = whole.weights();
      train(whole, options(mode.name, 4, {}, averages));
      clear();
      train(begun, options(mode.name, 2, {}, averages));
      resumed.net->parameters()[0].data().fill_(0.5);  // everything comes from the checkpoint
      train(resumed, options(mode.name, 4, {}, averages), folder_);
      expect_same(resumed.weights(), whole.weights(), mode.name);
      EXPECT_TRUE(is_packed(resumed.net->parameters()[0]));
      EXPECT_FALSE(same_bits(whole.weights().at("1.weight"), before.at("1.weight"))) << "the norm trains";
      const Checkpoint saved = load_newest(folder_).value().checkpoint;
      EXPECT_EQ(quantized_weights_of(saved.weights), (std::vector<std::string>{"0.weight", "2.weight"}));
      clear();
    }
}

TEST_F(QuantizedRuns, AFloatCheckpointIsQuantized) {
  TwoLayers begun, resumed;
  train(begun, options("32-true", 1));
  EXPECT_THAT(warning_of(resumed, options("nf4-dq", 2)),
              AllOf(HasSubstr("was saved in 32-true, and this run uses nf4-dq"),
                    HasSubstr("2 weights are quantized")));
  const at::Tensor want =
      pack_4bit(begun.net->parameters()[0], {.compress_statistics = true}, "w")->dequantize(at::kFloat);
  EXPECT_TRUE(same_bits(resumed.net->parameters()[0].dequantize(), want));
}

TEST_F(QuantizedRuns, MasterWeightsAreWhatIsQuantized) {
  TwoLayers begun, resumed;
  train(begun, options("bf16-true", 1, {.master_weights = true}));
  const Checkpoint saved = load_newest(folder_).value().checkpoint;
  const at::Tensor master =
      master_weights_of(StateReader(saved.state).at("precision").at("state")).at("0.weight");
  warning_of(resumed, options("int8", 2));
  EXPECT_TRUE(same_bits(resumed.net->parameters()[0].dequantize(), dequantize_int8(quantize_int8(master))));
  EXPECT_FALSE(same_bits(resumed.net->parameters()[0].dequantize(),
                         dequantize_int8(quantize_int8(saved.weights.at("0.weight")))))
      << "the rounded weight has other codes";
}

TEST_F(QuantizedRuns, AFloatRunRestoresAQuantizedCheckpoint) {
  TwoLayers begun, resumed;
  train(begun, options("nf4-dq", 1));
  EXPECT_THAT(warning_of(resumed, options("32-true", 2)),
              AllOf(HasSubstr("was saved in nf4-dq, and this run uses 32-true"),
                    HasSubstr("2 weights are restored from 4 or 8 bits and train again")));
  EXPECT_FALSE(is_packed(resumed.net->parameters()[0]));
  EXPECT_TRUE(resumed.net->parameters()[0].requires_grad());
}

/// Wraps a frozen weight as an adapter does.
struct Wrapped final : PackedData {
  explicit Wrapped(at::Tensor weight) : inner(std::move(weight)) {}
  std::string description() const override { return "wrapped"; }
  at::IntArrayRef sizes() const override { return inner.sizes(); }
  Parts parts() const override { return {{"", inner}}; }
  PackedDataPtr with_parts(Parts parts) const override { return with_base(parts.at("")); }
  PackedDataPtr with_values(const at::Tensor& values, const std::string&) const override {
    return with_base(values);
  }
  at::Tensor dequantize(at::ScalarType dtype) const override { return inner.to(dtype); }
  at::Tensor base() const override { return inner; }
  PackedDataPtr with_base(const at::Tensor& base) const override { return std::make_shared<Wrapped>(base); }
  at::Tensor inner;
};

TEST_F(QuantizedRuns, WhatIsRestoredUnderAnAdapterDoesNotTrainAgain) {
  TwoLayers begun, resumed;
  train(begun, options("nf4-dq", 1));
  at::Tensor& weight = resumed.net->ptr<torch::nn::LinearImpl>(0)->weight;
  replace_weight(weight, make_packed_weight(std::make_shared<Wrapped>(weight.detach().clone())));
  EXPECT_THAT(warning_of(resumed, options("32-true", 2)),
              AllOf(HasSubstr("2 weights are restored from 4 or 8 bits"), Not(HasSubstr("train again"))));
}

/// A layer that the resumed run ignores gets the values of its codes.
TEST_F(QuantizedRuns, ALayerThatIsIgnoredNowIsRestored) {
  TwoLayers begun, resumed;
  train(begun, options("fp4", 1));
  EXPECT_THAT(warning_of(resumed, options("fp4", 2, {.ignore_modules = {"2"}})),
              HasSubstr("1 weight is restored from 4 or 8 bits"));
  EXPECT_TRUE(is_packed(resumed.net->parameters()[0]));
  EXPECT_FALSE(is_packed(resumed.net->named_parameters()["2.weight"]));
}

TEST_F(QuantizedRuns, AnotherFormatIsRefusedAndChangesNothing) {
  TwoLayers begun, resumed;
  train(begun, options("nf4", 1));
  for (const auto& [mode, precision] : {std::pair<std::string, PrecisionOptions>{"fp4", {}},
                                        {"nf4-dq", {}},
                                        {"int8", {}},
                                        {"nf4", {.blocksize = 32}}}) {
    TwoLayers other;
    Tensors before;
    {
      TwoLayers same;
      make_precision(mode, at::kCPU, precision)->convert_module(*same.net);
      before = same.weights();
    }
    const std::string error =
        error_of([&, &m = mode, &p = precision] { train(other, options(m, 2, p), folder_); });
    EXPECT_THAT(
        error,
        AllOf(HasSubstr("' cannot be loaded: '0.weight' is saved as nf4, blocks of 64, and the model has " +
                        mode),
              HasSubstr(folder_.string()), HasSubstr("choose the mode nf4 with blocksize 64")))
        << mode;
    expect_same(other.weights(), before, mode);
  }
}

TEST_F(QuantizedRuns, ADamagedStateIsRefusedAndChangesNothing) {
  TwoLayers begun, other;
  train(begun, options("nf4", 1));
  Checkpoint saved = load_newest(folder_).value().checkpoint;
  clear();
  saved.weights.at("2.weight.absmax") = saved.weights.at("2.weight.absmax").narrow(0, 0, 1).clone();
  save_checkpoint(folder_ / "damaged", saved);
  TwoLayers same;
  make_precision("nf4", at::kCPU)->convert_module(*same.net);
  EXPECT_THAT(error_of([&] { train(other, options("nf4", 2), folder_ / "damaged"); }),
              HasSubstr("'2.weight.absmax' has dtype"));
  expect_same(other.weights(), same.weights(), "the model");
}

TEST_F(QuantizedRuns, WithNothingToTrainTheErrorNamesTheCures) {
  TwoLayers bare(/*with_rest=*/false), partly(/*with_rest=*/false);
  EXPECT_THAT(error_of([&] { train(bare, options("nf4", 1)); }),
              AllOf(HasSubstr("fit: precision 'nf4' freezes"), HasSubstr("add LoRA adapters"),
                    HasSubstr("ignore_modules")));
  train(partly, options("nf4", 1, {.ignore_modules = {"1"}}));
  EXPECT_TRUE(is_packed(partly.net->parameters()[0]));
}

TEST_F(QuantizedRuns, ValidationAndPredictionRunInTheMode) {
  struct Predicts : TwoLayers {
    c10::IValue predict_step(const Batch& batch, int64_t) override { return net->forward(batch.data); }
  };
  Predicts task;
  ListLoader data = batches(2);
  Trainer trainer({.precision = "nf4", .device = "cpu"});
  const auto predictions = trainer.predict(task, data);
  ASSERT_EQ(predictions.size(), 2U);
  EXPECT_TRUE(is_packed(task.net->parameters()[0]));
}

}  // namespace
}  // namespace mantissa::quantized_runs_test
