// A property that holds for every row of the registry, so that a new mode is tested without a new test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "mantissa/amp/matmul_precision.h"
#include "mantissa/core/device.h"
#include "mantissa/core/host_reads_internal.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/precision/registry.h"
#include "mantissa/weights/marked_weight.h"
#include "mantissa/weights/named_parts.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::all_modes_test {
namespace {

/// The options with which every linear layer of a small model computes in the mode's format.
PrecisionOptions options_of(const std::string& name) {
  PrecisionOptions options;
  if (find_mode(name).traits.layer_products == Format::kFloat8E4M3) options.fp8_first_and_last = true;
  return options;
}

class EveryMode : public testing::TestWithParam<std::tuple<std::string, c10::DeviceType>> {
 protected:
  void SetUp() override {
    if (device().is_cuda() && cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
    const FormatSupportInfo support = mode_support(find_mode(std::get<0>(GetParam())), device());
    if (support.support == FormatSupport::kUnavailable) GTEST_SKIP() << support.reason;
  }
  static at::Device device() { return at::Device(std::get<1>(GetParam())); }
  static std::unique_ptr<Precision> precision() {
    const std::string name = std::get<0>(GetParam());
    return make_precision(name, device(), options_of(name));
  }
};

/// Returns all settings of the process that a mode may change.
std::string settings(at::Device device) {
  return c10::str(torch::ones(1).scalar_type(), ' ', at::autocast::is_autocast_enabled(device.type()), ' ',
                  at::autocast::get_autocast_dtype(device.type()), ' ', get_float32_matmul_precision(), ' ',
                  tf32_convolutions(), ' ', at::GradMode::is_enabled());
}

TEST_P(EveryMode, AThrowingBodyRestoresAllDefaults) {
  const auto mode = precision();
  mode->set_float32_matmul_precision("high");  // every mode accepts it
  const std::string before = settings(device());
  const at::Tensor a = torch::ones({2, 2}, device());
  for (int repeat = 0; repeat < 2; ++repeat) {
    try {
      const Scope run = mode->run_context(), init = mode->module_init_context(),
                  forward = mode->forward_context();
      EXPECT_EQ(get_float32_matmul_precision(), "high");
      throw std::runtime_error("body");
    } catch (const std::runtime_error&) {
    }
    mode->teardown();
    EXPECT_EQ(settings(device()), before);
    EXPECT_EQ(a.mm(a).scalar_type(), at::kFloat);
  }
}

TEST_P(EveryMode, TrainsALineInAHandWrittenLoop) {
  torch::manual_seed(0);
  const auto mode = precision();
  torch::nn::Linear net(4, 1);
  net->to(device());
  mode->convert_module(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  mode->setup_optimizer(optimizer);
  const at::Tensor x = torch::randn({64, 4}, device());
  // Only the bias of a layer with frozen weights trains.
  const at::Tensor y = mode->traits().frozen_weights ? net(x).detach() + 2 : x.sum(1, /*keepdim=*/true);
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Scope scope = mode->forward_context();
      loss = torch::mse_loss(net(mode->convert_input(x)), mode->convert_input(y));
    }
    mode->backward(loss);
    mode->clip_gradients(optimizer, 10.0);
    mode->optimizer_step(optimizer);
    last = mode->convert_output(loss).item<double>();
    if (step == 0) first = last;
  }
  EXPECT_GT(first, 1.0);
  EXPECT_LT(last, 0.01);
}

TEST_P(EveryMode, AModeWithAutocastNamesItsDevice) {
  const auto mode = precision();
  const Scope forward = mode->forward_context();
  if (!at::autocast::is_autocast_enabled(device().type())) return;
  EXPECT_EQ(mode->device_type(), device().type());
}

TEST_P(EveryMode, ABackwardPassInsideTheForwardContextRunsWithoutAutocast) {
  const auto mode = precision();
  const auto is_on = [] { return at::autocast::is_autocast_enabled(device().type()); };
  const Scope forward = mode->forward_context();
  const bool before = is_on();
  {
    const Scope backward = mode->backward_context();
    EXPECT_FALSE(is_on());
  }
  EXPECT_EQ(is_on(), before);
}

TEST_P(EveryMode, AnEmptyModelIsConvertedLikeOneWithValues) {
  const auto mode = precision();
  const auto converted = [&](const auto& convert) {
    torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8));
    net->to(device());
    convert(*net);
    std::string parameters;
    for (const at::Tensor& p : net->parameters())
      parameters += c10::str(mode->parameter_name(p), ' ', p.scalar_type(), ' ', p.sizes(), ' ', is_packed(p),
                             ' ', weight_rule(p) != nullptr, ' ', p.requires_grad(), '\n');
    return parameters;
  };
  EXPECT_EQ(converted([&](auto& net) { mode->convert_empty(net); }),
            converted([&](auto& net) { mode->convert_module(net); }));
}

TEST_P(EveryMode, GradientsLookTheSameInEveryMode) {
  const auto mode = precision();
  torch::nn::Linear net(2, 2);
  net->to(device());
  mode->convert_module(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  mode->setup_optimizer(optimizer);
  // The loss is in float32, because the scale, 65536, is beyond fp16.
  mode->backward((net->bias.to(at::kFloat) * 0.1875).sum());
  mode->unscale_gradients(optimizer);
  const at::Tensor gradient = main_params(optimizer)[1].grad();
  EXPECT_TRUE(gradient.to(at::kCPU, at::kFloat).equal(torch::full({2}, 0.1875F)));
}

/// A small network in a hand-written loop, with everything that a checkpoint keeps of it.
struct Loop {
  Loop(const std::string& name, at::Device on, const PrecisionOptions& options)
      : device(on), mode(make_precision(name, on, options)) {
    torch::manual_seed(0);
    net = torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8), torch::nn::Linear(8, 1));
    net->to(device);
    mode->convert_module(*net);
    optimizer.emplace(net->parameters(), SGDOptions(0.05).momentum(0.9));
    mode->setup_optimizer(*optimizer);
  }
  StepResult step(int64_t number) {
    const at::Tensor x = (torch::arange(64, at::kFloat).view({16, 4}) + number).sin().to(device);
    optimizer->zero_grad();
    at::Tensor loss;
    {
      const Scope scope = mode->forward_context();
      loss = net->forward(mode->convert_input(x)).square().mean();
    }
    mode->backward(loss);
    mode->clip_gradients(*optimizer, 1.0);
    return mode->optimizer_step(*optimizer);
  }
  std::map<std::string, at::Tensor> tensors() const {
    std::map<std::string, at::Tensor> all;
    for (const auto& entry : net->named_parameters()) all.emplace(entry.key(), entry.value());
    for (const auto& entry : net->named_buffers()) all.emplace(entry.key(), entry.value());
    return all;
  }
  StateDict checkpoint() const {
    StateDict weights;
    for (const auto& [name, tensor] : named_parts(tensors())) weights.emplace(name, tensor.detach());
    return snapshot({{"weights", std::move(weights)},
                     {"optimizer", optimizer_state(*optimizer)},
                     {"precision", mode->state_dict()}});
  }
  void load(const StateDict& saved) {
    const StateReader state(saved);
    const torch::NoGradGuard no_grad;
    std::map<std::string, at::Tensor> stored;
    for (const auto& [name, value] : state.at("weights").to_dict())
      stored.emplace(name, state.at("weights").at(name).to_tensor());
    PartsLoader(*net, stored).load();
    for (auto& [name, tensor] : plain_weights(tensors())) at::Tensor(tensor).copy_(stored.at(name));
    load_optimizer_state(*optimizer, state.at("optimizer"));
    EXPECT_EQ(mode->load_state_dict(state.at("precision")), std::vector<std::string>());
  }

  at::Device device;
  std::unique_ptr<Precision> mode;
  torch::nn::Sequential net{nullptr};
  std::optional<FusedSGD> optimizer;
};

TEST_P(EveryMode, ALoopThatIsSavedAndLoadedContinuesBitForBit) {
  const std::string name = std::get<0>(GetParam());
  Loop straight(name, device(), options_of(name));
  for (int64_t i = 0; i < 5; ++i) straight.step(i);
  const StateDict saved = straight.checkpoint();
  for (int64_t i = 5; i < 10; ++i) straight.step(i);
  Loop resumed(name, device(), options_of(name));
  resumed.step(100);  // changes the state, so that the results differ unless everything is loaded
  resumed.load(saved);
  for (int64_t i = 5; i < 10; ++i) resumed.step(i);
  EXPECT_EQ(difference(straight.checkpoint(), resumed.checkpoint()), "");
}

TEST_P(EveryMode, StateThatTheModeCannotLoadIsReported) {
  const auto mode = precision();
  StateDict state = mode->state_dict();
  EXPECT_EQ(mode->load_state_dict(StateReader(state)), std::vector<std::string>());
  state.emplace("amax_history", torch::ones(3));  // of a mode that keeps one
  state.emplace("master_weights", StateDict());   // the weights are loaded from those
  EXPECT_EQ(mode->load_state_dict(StateReader(state)),
            std::vector<std::string>({"its amax history is dropped"}));
}

TEST_P(EveryMode, AFusedOptimizersStepReadsNothingOnTheHost) {
  PrecisionOptions options = options_of(std::get<0>(GetParam()));
  // Which columns are outliers is known on the host only, as in bitsandbytes.
  if (std::get<0>(GetParam()).starts_with("int8")) options.llm_int8_threshold = 0;
  Loop loop(std::get<0>(GetParam()), device(), options);
  loop.step(0);  // creates the optimizer's state
  const HostReads reads;
  const StepResult result = loop.step(1);
  EXPECT_EQ(reads.calls(), (std::map<std::string, int64_t>()));
  EXPECT_EQ(result.is_known(), device().is_cpu() || !loop.mode->traits().scales_loss);
  result.skipped();
}

TEST_P(EveryMode, AStepWithoutGradientsIsSkippedAlike) {
  const auto mode = precision();
  torch::nn::Linear net(2, 2);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  mode->setup_optimizer(optimizer);
  EXPECT_EQ(mode->optimizer_step(optimizer).cause(), SkipCause::kNoGradients);
  EXPECT_EQ(mode->optimizer_step(optimizer, [] { return at::Tensor(); }).cause(), SkipCause::kNoGradients);
}

TEST_P(EveryMode, ALossOfAnotherModelIsWarnedOfOnce) {
  const auto mode = precision();
  torch::nn::Linear net(2, 2), other(2, 1);
  mode->convert_module(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  mode->setup_optimizer(optimizer);
  const auto warning_of_a_step = [&] {
    testing::internal::CaptureStderr();
    mode->backward(other(at::ones({1, 2}, device())).sum());
    EXPECT_EQ(mode->optimizer_step(optimizer).cause(), SkipCause::kNoGradients);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(warning_of_a_step(),
              testing::HasSubstr("none of the 2 parameters of the optimizer got a gradient"));
  EXPECT_EQ(warning_of_a_step(), "");
}

TEST_P(EveryMode, ALossWithoutAGradientIsRefused) {
  const auto mode = precision();
  for (const at::Tensor& loss : {at::ones({}), at::Tensor()})
    EXPECT_THAT(error_of([&] { mode->backward(loss); }),
                testing::HasSubstr("give a loss of a model that trains"));
}

TEST_P(EveryMode, IntegersAndMasksKeepTheirDtype) {
  const auto mode = precision();
  for (const auto dtype : {at::kLong, at::kBool, at::kByte}) {
    const at::Tensor x = torch::ones(2, at::device(device()).dtype(dtype));
    EXPECT_TRUE(mode->convert_input(x).is_same(x));
    EXPECT_TRUE(mode->convert_output(x).is_same(x));
  }
}

std::vector<std::string> mode_names() {
  std::vector<std::string> names;
  for (const Mode& mode : modes()) names.push_back(mode.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryMode,
                         testing::Combine(testing::ValuesIn(mode_names()),
                                          testing::Values(at::kCPU, at::kCUDA)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param) +
                                              (std::get<1>(info.param) == at::kCPU ? "_cpu" : "_cuda");
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace mantissa::all_modes_test
