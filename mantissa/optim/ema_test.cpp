#include "mantissa/optim/ema.h"

#include <sstream>

#include "mantissa/optim/test_support_internal.h"
#include "mantissa/weights/replace_weight.h"
#include "mantissa/weights/test_support_internal.h"

namespace mantissa::ema_test {
namespace {

struct Net : torch::nn::Module {
  Net() {
    fc = register_module("fc", torch::nn::Linear(3, 2));
    norm = register_module("norm", torch::nn::BatchNorm1d(2));
  }
  void write(double value) {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) parameter.fill_(value);
    norm->running_mean.fill_(10 * value);
    norm->num_batches_tracked.fill_(static_cast<int64_t>(value));
  }
  torch::nn::Linear fc{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST(Ema, AveragesAreThoseOfPython) {
  Net net;
  ExponentialMovingAverage ema(net, {.decay = 0.9});
  at::Tensor want;
  for (int step = 0; step < 5; ++step) {
    torch::manual_seed(static_cast<uint64_t>(step));
    {
      const torch::NoGradGuard no_grad;
      net.fc->weight.normal_();
    }
    ema.update();
    // AveragedModel.update_parameters() with get_ema_multi_avg_fn(0.9)
    want = step == 0 ? net.fc->weight.detach().clone() : want.lerp(net.fc->weight.detach(), 1 - 0.9);
  }
  EXPECT_TRUE(at::equal(ema.averages()[0], want));
  EXPECT_EQ(ema.num_updates(), 5);
}

TEST(Ema, BuffersAreTheModulesOwnUnlessAveraged) {
  for (const bool use_buffers : {false, true}) {
    Net net;
    ExponentialMovingAverage ema(net, {.decay = 0.5, .use_buffers = use_buffers});
    net.write(1);
    ema.update();
    net.write(3);
    ema.update();
    const auto averaged = ema.average_weights();
    EXPECT_EQ(net.fc->weight[0][0].item<float>(), 2);
    EXPECT_EQ(net.norm->running_mean[0].item<float>(), use_buffers ? 20 : 30);
    EXPECT_EQ(net.norm->num_batches_tracked.item<int64_t>(), 3);
  }
}

TEST(Ema, NamesTheAveragesOfBuffersToo) {
  Net net;
  ExponentialMovingAverage ema(net, {.decay = 0.5, .use_buffers = true});
  EXPECT_TRUE(ema.named_averages().empty());
  net.write(1);
  ema.update();
  net.write(3);
  ema.update();
  const auto named = ema.named_averages();
  EXPECT_EQ(named.size(), net.parameters().size() + net.buffers().size());
  EXPECT_EQ(named.at("fc.weight")[0][0].item<float>(), 2);
  EXPECT_EQ(named.at("norm.running_mean")[0].item<float>(), 20);
}

TEST(Ema, UpdatesAndLoadsInInferenceModeToo) {
  Net net;
  ExponentialMovingAverage ema(net, {.decay = 0.5}), loaded(net, {.decay = 0.5});
  {
    const c10::InferenceMode inference;
    net.write(1);
    ema.update();
    save_and_load(ema, loaded);
  }
  net.write(3);
  for (ExponentialMovingAverage* average : {&ema, &loaded}) {
    average->update();
    EXPECT_EQ(average->averages()[0][0][0].item<float>(), 2);
  }
}

TEST(Ema, TrainedWeightsComeBackAlsoWhenTheBodyThrows) {
  Net net;
  ExponentialMovingAverage ema(net, {.decay = 0.5});
  net.write(1);
  EXPECT_FALSE(ema.average_weights()) << "nothing is averaged yet";
  ema.update();
  net.write(3);
  ema.update();
  const at::Tensor alias = net.fc->weight;
  try {
    const auto averaged = ema.average_weights();
    EXPECT_EQ(alias[0][0].item<float>(), 2);
    throw std::runtime_error("validation");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(alias[0][0].item<float>(), 3);
  EXPECT_EQ(net.norm->running_mean[0].item<float>(), 30);
  EXPECT_TRUE(net.fc->weight.requires_grad());
  ema.copy_to_module();
  EXPECT_EQ(alias[0][0].item<float>(), 2);
}

TEST(Ema, AfterOneUpdateTheAverageIsThatOfTheFirstWeights) {
  Net net;
  ExponentialMovingAverage ema(net);
  ema.copy_to_module();  // nothing is averaged yet
  net.write(1);
  ema.update();
  net.write(3);
  {
    const auto averaged = ema.average_weights();
    EXPECT_EQ(net.fc->weight[0][0].item<float>(), 1);
  }
  EXPECT_EQ(net.fc->weight[0][0].item<float>(), 3);
  ema.copy_to_module();
  EXPECT_EQ(net.fc->weight[0][0].item<float>(), 1);
}

TEST(Ema, WithDecay0TheAverageIsTheLastWeights) {
  Net net;
  ExponentialMovingAverage ema(net, {.decay = 0});
  for (const double value : {1, 3}) {
    net.write(value);
    ema.update();
  }
  EXPECT_EQ(ema.averages()[0][0][0].item<float>(), 3);
}

TEST(Ema, SixteenBitWeightsAreAveragedInFloat32) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    Net net;
    net.to(dtype);
    ExponentialMovingAverage ema(net, {.decay = 0.999});
    net.write(1);
    ema.update();
    net.write(2);
    for (int i = 0; i < 1000; ++i) ema.update();  // a 16-bit average would not move
    EXPECT_EQ(ema.averages()[0].scalar_type(), at::kFloat);
    EXPECT_NEAR(ema.averages()[0][0][0].item<float>(), 2 - std::pow(0.999, 1000), 1e-3);
    const auto averaged = ema.average_weights();
    EXPECT_EQ(net.fc->weight.scalar_type(), dtype);
    EXPECT_NEAR(net.fc->weight[0][0].item<float>(), 1.632, 0.005);
  }
}

TEST(Ema, SavedInTheMiddleContinuesBitForBit) {
  Net net, other;
  ExponentialMovingAverage straight(net), resumed(other);
  net.write(1);
  straight.update();
  net.write(2);
  straight.update();
  save_and_load(straight, resumed);
  net.write(3);
  other.write(3);
  straight.update();
  resumed.update();
  ASSERT_EQ(resumed.num_updates(), 3);
  for (size_t i = 0; i < straight.averages().size(); ++i)
    EXPECT_TRUE(at::equal(resumed.averages()[i], straight.averages()[i])) << i;
}

TEST(Ema, LeavesPackedWeightsOut) {
  Net net, other;
  for (Net* each : {&net, &other}) replace_weight(*each, "fc.weight", pack(each->fc->weight));
  const at::Tensor before = net.fc->weight.dequantize();
  ExponentialMovingAverage ema(net, {.decay = 0.5, .use_buffers = true}), resumed(other, {.decay = 0.5});
  const auto write = [&](float value) {
    const torch::NoGradGuard no_grad;
    net.fc->bias.fill_(value);
    net.norm->running_mean.fill_(value);
  };
  write(1);
  ema.update();
  write(3);
  ema.update();
  EXPECT_EQ(ema.averages().size(), net.parameters().size() + net.buffers().size() - 1);
  EXPECT_FALSE(ema.named_averages().contains("fc.weight"));
  EXPECT_EQ(ema.named_averages().at("fc.bias")[0].item<float>(), 2);
  EXPECT_EQ(ema.named_averages().at("norm.running_mean")[0].item<float>(), 2) << "each under its own name";
  {
    const auto averaged = ema.average_weights();
    EXPECT_EQ(net.fc->bias[0].item<float>(), 2);
    EXPECT_TRUE(is_packed(net.fc->weight));
  }
  EXPECT_EQ(net.fc->bias[0].item<float>(), 3);
  save_and_load(ema, resumed);
  EXPECT_TRUE(at::equal(resumed.averages()[0], ema.averages()[0]));
  resumed.copy_to_module();
  EXPECT_EQ(other.fc->bias[0].item<float>(), 2);
  EXPECT_TRUE(at::equal(net.fc->weight.dequantize(), before));
  net.fc->weight.set_requires_grad(true);
  EXPECT_THAT(error_of([&] { ExponentialMovingAverage trained(net); }),
              testing::HasSubstr("is stored as codes"))
      << "codes are too coarse for an average";
  EXPECT_THROW(ema.update(), c10::ValueError);
}

TEST(Ema, RefusesWhatDoesNotFit) {
  Net net;
  for (const double decay : {-0.1, 1.0, std::nan("")})
    EXPECT_THROW(ExponentialMovingAverage(net, {.decay = decay}), c10::ValueError);
  ExponentialMovingAverage ema(net);
  ema.update();
  torch::nn::Linear linear(4, 4);
  ExponentialMovingAverage another(*linear);
  another.update();
  const at::Tensor before = another.averages()[0].clone();
  EXPECT_THROW(save_and_load(ema, another), c10::Error);
  EXPECT_TRUE(at::equal(another.averages()[0], before));
}

TEST(Ema, RefusesAModuleThatChangedBeforeAnythingIsWritten) {
  Net net;
  ExponentialMovingAverage ema(net);
  net.write(1);
  ema.update();
  net.write(3);
  net.register_module("late", torch::nn::Linear(1, 1));
  const auto is_refused = testing::HasSubstr(
      "there are averages of 7 tensors, and the module has 9; number and shapes must match");
  EXPECT_THAT(error_of([&] { ema.update(); }), is_refused);
  EXPECT_EQ(ema.averages()[0][0][0].item<float>(), 1);
  EXPECT_THAT(error_of([&] { ema.copy_to_module(); }), is_refused);
  EXPECT_EQ(net.fc->weight[0][0].item<float>(), 3);
  EXPECT_THAT(error_of([&] { ema.named_averages(); }), is_refused);
}

}  // namespace
}  // namespace mantissa::ema_test
