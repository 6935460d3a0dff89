// Tests of a run's device: the run makes it current, lays out tensors, sets cuDNN's benchmark mode, transfers
// batches, and explains an out-of-memory error.
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <torch/torch.h>

#include "mantissa/core/device.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/precision/channels_last.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/callbacks/model_checkpoint.h"
#include "mantissa/trainer/callbacks/weight_averaging.h"
#include "mantissa/trainer/memory_plan.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::device_options_test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

/// A task that calls something in each of its steps.
struct Calls final : OneWeight {
  using Call = std::function<void(const Batch&)>;
  at::Tensor training_step(const Batch& batch, int64_t index) override {
    if (in_training) in_training(batch);
    return OneWeight::training_step({batch.data.mean().reshape({1, 1}), {}, {}}, index);
  }
  void validation_step(const Batch& batch, int64_t) override {
    if (in_validation) in_validation(batch);
  }
  void configure_model() override {
    if (in_set_up) in_set_up();
  }
  Call in_training, in_validation;
  std::function<void()> in_set_up;
};

ListLoader loader_of_four() { return ListLoader({{torch::ones({4, 1}), {}, {}}}); }

// cuDNN's benchmark mode

TEST(Benchmark, HoldsForTheRunAndNoLonger) {
  std::vector<bool> seen;
  Calls task;
  task.in_training =
      task.in_validation = [&](const Batch&) { seen.push_back(at::globalContext().benchmarkCuDNN()); };
  ListLoader train = loader_of_four(), val = loader_of_four();
  for (const bool before : {false, true}) {
    at::globalContext().setBenchmarkCuDNN(before);
    for (const std::optional<bool> benchmark :
         {std::optional<bool>(), std::optional(true), std::optional(false)}) {
      seen.clear();
      Trainer trainer({.device = "cpu", .benchmark = benchmark, .num_sanity_val_steps = 0});
      trainer.fit(task, train, &val);
      trainer.validate(task, val);
      EXPECT_THAT(seen, ElementsAre(benchmark.value_or(before), benchmark.value_or(before),
                                    benchmark.value_or(before)));
      EXPECT_EQ(at::globalContext().benchmarkCuDNN(), before);
    }
  }
  at::globalContext().setBenchmarkCuDNN(false);
}

TEST(Benchmark, EndsWithAnExceptionToo) {
  Calls task;
  task.in_training = [](const Batch&) { throw std::runtime_error("training_step failed"); };
  ListLoader train = loader_of_four();
  EXPECT_THROW(Trainer({.device = "cpu", .benchmark = true}).fit(task, train), std::runtime_error);
  EXPECT_FALSE(at::globalContext().benchmarkCuDNN());
}

// Out of memory

[[noreturn]] void run_out() {
  throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__},
                              "CUDA out of memory. Tried to allocate 2.00 GiB.");
}

/// Returns the message of the Error that `work` throws. Another exception ends the test.
template <typename Error, typename Work>
std::string message_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(OutOfMemory, NamesBatchSizeDeviceMemoryAndCures) {
  Calls task;
  task.in_training = [](const Batch&) { run_out(); };
  ListLoader train = loader_of_four();
  std::string recorded;
  struct Records final : Callback {
    explicit Records(std::string& text) : recorded(text) {}
    void on_exception(Trainer& /*trainer*/, const std::exception_ptr& exception) override {
      recorded = message_of<c10::OutOfMemoryError>([&] { std::rethrow_exception(exception); });
    }
    std::string& recorded;
  };
  const std::string error = message_of<c10::OutOfMemoryError>([&] {
    Trainer({.device = "cpu", .callbacks = {std::make_shared<Records>(recorded)}}).fit(task, train);
  });
  EXPECT_THAT(error,
              AllOf(HasSubstr("Tried to allocate 2.00 GiB."),
                    HasSubstr("the run in 32-true on cpu was at batch size 4; the machine has "),
                    HasSubstr("use smaller batches, and raise accumulate_grad_batches to keep the samples "
                              "per step, or use a mode that computes in 16 bits; plan_memory() predicts"),
                    Not(HasSubstr("the memory of a mode; "))));
  EXPECT_EQ(recorded, error);
}

TEST(OutOfMemory, IsReportedInEveryStageAndBeforeTheFirstBatch) {
  ListLoader train = loader_of_four(), val({{torch::ones({6, 1}), {}, {}}});
  const TrainerOptions options{.precision = "bf16-mixed", .device = "cpu", .num_sanity_val_steps = 0};
  Calls validates;
  validates.in_validation = [](const Batch&) { run_out(); };
  using Error = c10::OutOfMemoryError;
  for (const std::string& error : {message_of<Error>([&] { Trainer(options).fit(validates, train, &val); }),
                                   message_of<Error>([&] { Trainer(options).validate(validates, val); }),
                                   message_of<Error>([&] { Trainer(options).test(validates, val); })})
    EXPECT_THAT(error, AllOf(HasSubstr("in bf16-mixed on cpu was at batch size 6; "),
                             Not(HasSubstr("or use a mode"))));
  ListLoader single({{torch::ones({1, 1}), {}, {}}});
  EXPECT_THAT(message_of<Error>([&] { Trainer(options).validate(validates, single); }),
              HasSubstr("on cpu was at batch size 1; "));
  Calls makes;
  makes.in_set_up = run_out;
  EXPECT_THAT(message_of<Error>([&] { Trainer(options).fit(makes, train); }),
              HasSubstr("was before its first batch; "));
}

TEST(OutOfMemory, OfTheCpusAllocatorIsReportedAlike) {
  Calls task;
  task.in_training = [](const Batch&) { torch::empty({std::numeric_limits<int64_t>::max() / 8}); };
  ListLoader train = loader_of_four();
  EXPECT_THAT(message_of<c10::Error>([&] { Trainer({.device = "cpu"}).fit(task, train); }),
              AllOf(HasSubstr("DefaultCPUAllocator"), HasSubstr("was at batch size 4; ")));
}

TEST(OutOfMemory, OtherErrorsStayAsTheyAre) {
  Calls task;
  task.in_training = [](const Batch&) { TORCH_CHECK(false, "training_step failed"); };
  ListLoader train = loader_of_four();
  EXPECT_EQ(message_of<c10::Error>([&] { Trainer({.device = "cpu"}).fit(task, train); }),
            "training_step failed");
}

// Channels last

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("convolution", convolution);
    register_module("norm", norm);
    register_module("linear", linear);
  }
  at::Tensor forward(const at::Tensor& x) {
    return linear->forward(torch::relu(norm->forward(convolution->forward(x))).mean({2, 3}));
  }
  torch::nn::Conv2d convolution{torch::nn::Conv2dOptions(3, 8, 3).padding(1)};
  torch::nn::BatchNorm2d norm{8};
  torch::nn::Linear linear{8, 2};
};
TORCH_MODULE(Net);

struct Images final : Task {
  explicit Images(bool fused = false) : fused_(fused) {}
  torch::nn::Module& module() override { return *net; }
  std::vector<OptimizerConfig> configure_optimizers() override {
    if (fused_) return {{std::make_shared<FusedAdamW>(net->parameters(), AdamWOptions(0.05))}};
    return {{std::make_shared<torch::optim::SGD>(net->parameters(),
                                                 torch::optim::SGDOptions(0.1).momentum(0.9))}};
  }
  at::Tensor training_step(const Batch& batch, int64_t) override {
    formats.push_back(batch.data.is_contiguous(kLast) && net->convolution->weight.is_contiguous(kLast));
    return loss(batch);
  }
  void validation_step(const Batch& batch, int64_t) override {
    formats.push_back(batch.data.is_contiguous(kLast));
    log("val_loss", loss(batch));
  }
  c10::IValue predict_step(const Batch& batch, int64_t) override { return net->forward(batch.data); }
  at::Tensor loss(const Batch& batch) {
    return torch::nn::functional::cross_entropy(net->forward(batch.data).to(at::kFloat), batch.target);
  }

  Net net;
  std::vector<bool> formats;

 private:
  bool fused_;
};

ListLoader images(int64_t batches) {
  torch::manual_seed(1);
  std::vector<Batch> list;
  for (int64_t i = 0; i < batches; ++i)
    list.push_back({torch::randn({4, 3, 8, 8}), torch::randint(2, {4}), {}});
  return ListLoader(std::move(list));
}

TEST(ChannelsLastOption, TrainsAsALoopInThatFormatInEveryMode) {
  for (const Mode& mode : modes()) {
    if (mode.historical) continue;
    ListLoader train = images(3);
    torch::manual_seed(2);
    Images task;
    Trainer trainer({.precision = mode.name, .device = "cpu", .channels_last = true});
    trainer.fit(task, train, &train);
    EXPECT_THAT(task.formats, Each(true)) << mode.name;
    torch::manual_seed(2);
    Images same;
    const auto precision = make_precision(mode.name, at::kCPU);
    precision->convert_module(*same.net);
    for (at::Tensor& parameter : same.net->parameters())
      if (parameter.dim() == 4)
        parameter.set_data(parameter.data().to(parameter.options(), false, false, kLast));
    const auto optimizer = same.configure_optimizers().front().optimizer;
    precision->setup_optimizer(*optimizer);
    train.set_epoch(0);
    while (const auto raw = train.next()) {
      Batch batch = precision->convert_inputs(*raw);
      batch.data = batch.data.contiguous(kLast);
      precision->optimizer_step(*optimizer, [&] {
        at::Tensor loss;
        {
          const Scope forward = precision->forward_context();
          loss = same.loss(batch);
        }
        optimizer->zero_grad();
        precision->backward(loss);
        return loss;
      });
    }
    for (const auto& weight : same.net->named_parameters())
      EXPECT_TRUE(mantissa::dequantize(weight.value())
                      .equal(mantissa::dequantize(task.net->named_parameters()[weight.key()])))
          << mode.name << weight.key();
  }
}

TEST(ChannelsLastOption, IsOffByDefault) {
  Images task;
  ListLoader train = images(1);
  Trainer({.device = "cpu"}).fit(task, train);
  EXPECT_THAT(task.formats, ElementsAre(false));
}

TEST(ChannelsLastOption, PredictsWhatAnotherLayoutPredicts) {
  torch::manual_seed(3);
  Images task;
  ListLoader data = images(2);
  const auto predict = [&](bool channels_last) {
    return Trainer({.device = "cpu", .channels_last = channels_last}).predict(task, data)[1].toTensor();
  };
  const at::Tensor want = predict(false), got = predict(true);
  EXPECT_TRUE(got.allclose(want, 1e-5, 1e-6));  // sums in another order
}

TEST(ChannelsLastOption, ThePlanOfWhatIsKeptIsThatOfAnyFormat) {
  const auto planned = [](bool channels_last) {
    Images task;
    const Batch batch{torch::randn({64, 3, 8, 8}), torch::randint(2, {64}), {}};
    return plan_memory(task, batch, {.device = "cpu", .channels_last = channels_last});
  };
  const MemoryPlan plain = planned(false), last = planned(true);
  EXPECT_EQ(last.weights, plain.weights);
  EXPECT_EQ(last.gradients, plain.gradients);
  EXPECT_EQ(last.optimizer_states, plain.optimizer_states);
}

class ChannelsLastResume : public InFolder {};

TEST_F(ChannelsLastResume, ContinuesBitForBitWithMastersAnAverageAndAFusedOptimizer) {
  const auto fit = [&](const std::string& name, int64_t epochs, const std::string& from, bool channels_last) {
    torch::manual_seed(4);
    auto task = std::make_unique<Images>(/*fused=*/true);
    ListLoader train = images(3);
    TrainerOptions options{.precision = "bf16-true",
                           .device = "cpu",
                           .channels_last = channels_last,
                           .max_epochs = epochs,
                           .gradient_clip_val = 0.5};
    options.precision_options.master_weights = true;
    options.callbacks = {std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_ / name}),
                         std::make_shared<EMAWeightAveraging>(EMAWeightAveragingOptions{{0.9}})};
    Trainer(std::move(options)).fit(*task, train, nullptr, from.empty() ? "" : folder_ / from);
    return task;
  };
  const auto whole = fit("whole", 3, "", true);
  fit("run", 1, "", true);
  const auto rest = fit("run", 3, "run", true);
  EXPECT_TRUE(rest->net->convolution->weight.is_contiguous(kLast));
  for (const auto& weight : whole->net->named_parameters())
    EXPECT_TRUE(weight.value().equal(rest->net->named_parameters()[weight.key()])) << weight.key();
  testing::internal::CaptureStderr();
  fit("run", 4, "run", false);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("its channels_last was true and is false"));
}

// Transfer of batches

void check_order_of_batches(const std::string& device) {
  std::vector<float> seen;
  Calls task;
  task.in_training =
      task.in_validation = [&](const Batch& batch) { seen.push_back(batch.data.mean().item<float>()); };
  ListLoader train = loader_of({1, 2, 3}), val = loader_of({4, 5});
  Trainer trainer({.device = device, .max_epochs = 2, .val_check_interval = 2, .num_sanity_val_steps = 0});
  trainer.fit(task, train, &val);
  EXPECT_THAT(seen, ElementsAre(1, 2, 4, 5, 3, 1, 2, 4, 5, 3, 4, 5));
  seen.clear();
  trainer.test(task, val);
  EXPECT_THAT(seen, ElementsAre(4, 5));
}

TEST(BatchesOnTheirWay, ArriveInOrderThoughAValidationComesBetween) { check_order_of_batches("cpu"); }

TEST(BatchesOnTheirWay, ArriveInOrderOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  check_order_of_batches("cuda");
}

// On a GPU

TEST(TrainerCuda, TrainsOnTheDeviceThatWasNamedAndRestoresTheCurrentOne) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  if (cuda_device_count() < 2) GTEST_SKIP() << "there is one GPU: the second one cannot be named";
  std::vector<c10::DeviceIndex> current;
  Calls task;
  task.in_training = [&](const Batch& batch) {
    current.push_back(at::accelerator::getDeviceIndex());
    EXPECT_EQ(batch.data.device(), at::Device(at::kCUDA, 1));
  };
  ListLoader train = loader_of_four();
  Trainer({.device = "cuda:1"}).fit(task, train);
  EXPECT_THAT(current, ElementsAre(1));
  EXPECT_EQ(at::accelerator::getDeviceIndex(), 0);
}

TEST(TrainerCuda, ThePeakIsTheRunsOwnInEveryStage) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  torch::empty({1 << 28}, at::device(at::kCUDA).dtype(at::kByte));  // before the runs, and freed
  Calls task;
  ListLoader data = loader_of_four();
  Trainer trainer({.device = "cuda"});
  trainer.validate(task, data);
  EXPECT_LT(peak_memory_bytes(trainer.device()), 1 << 28);
  torch::empty({1 << 28}, at::device(at::kCUDA).dtype(at::kByte));
  EXPECT_LT(trainer.fit(task, data).peak_memory_bytes, 1 << 28);
}

}  // namespace
}  // namespace mantissa::device_options_test
