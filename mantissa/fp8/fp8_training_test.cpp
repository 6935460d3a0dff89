#include "mantissa/fp8/fp8_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/fp8/training_test_support_internal.h"

namespace mantissa::fp8_training_test {
namespace {

TEST(Fp8Training, APlainLinearTrains) {
  torch::manual_seed(1);
  torch::nn::Linear layer(48, 16);
  const auto state = mark(layer);
  torch::optim::SGD optimizer(layer->parameters(), 0.01);
  const at::Tensor x = torch::randn({32, 48}), target = torch::randn({32, 16});
  double first = 0, last = 0;
  for (int i = 0; i < 40; ++i) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Fp8Autocast region;
      loss = torch::mse_loss(layer(x), target);
    }
    loss.backward();
    optimizer.step();
    state->update_scales();
    (i == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, 0.9 * first);
  EXPECT_TRUE(state->has_scales().all());
}

TEST(Fp8Training, ComputesAsLinearFp8InARegionAndPlainlyOutside) {
  torch::nn::Linear layer(20, 7);
  const at::Tensor x = wide({5, 20}), plain = layer(x).detach();
  const auto state = mark(layer);
  EXPECT_TRUE(at::equal(layer(x), plain));
  const auto twin = std::make_shared<Fp8LinearState>(Float8CurrentScaling());  // as in the first step
  const at::Tensor expected = linear_fp8(x, layer->weight + 0, layer->bias, twin);
  EXPECT_TRUE(at::equal(step(layer, x), expected));
  EXPECT_FALSE(at::equal(expected, plain));
}

TEST(Fp8Training, EveryKindOfProductIsTheSame) {
  torch::nn::Linear layer(torch::nn::LinearOptions(16, 8).bias(false));
  const at::Tensor x = wide({4, 16}), weight = layer->weight;
  mark(layer, Float8CurrentScaling());
  const auto check = [&](const char* name, const auto& product, const at::Tensor& expected) {
    const at::Tensor plain = product();
    const Fp8Autocast region;
    EXPECT_TRUE(at::equal(product(), expected)) << name;
    EXPECT_FALSE(at::equal(plain, expected)) << name;
  };
  at::Tensor expected, row;
  {
    const Fp8Autocast region;
    expected = at::linear(x, weight), row = at::linear(x[0], weight);
  }
  check(
      "matmul", [&] { return at::matmul(x, weight.t()); }, expected);
  check(
      "mm", [&] { return at::mm(x, weight.t()); }, expected);
  check(
      "left", [&] { return at::mm(weight, x.t()); }, expected.t());
  check(
      "mv", [&] { return at::mv(weight, x[0]); }, row);
  check(
      "addmm", [&] { return at::addmm(at::zeros({8}), x, weight.t()); }, expected);
  check(
      "einsum",
      [&] {
        return at::einsum("bi,oi->bo", {x, weight});
      },
      expected);
}

TEST(Fp8Training, F8_28_CodesAreKeptWithinAStepAndNeverStale) {
  torch::manual_seed(2);
  torch::nn::Linear layer(16, 8);
  const at::Tensor x = wide({4, 16});
  const auto state = mark(layer);
  const at::Tensor first = step(layer, x), second = step(layer, x);
  EXPECT_TRUE(at::equal(first, second));
  {
    const torch::NoGradGuard no_grad;
    layer->weight.data().mul_(-1);
  }
  const at::Tensor changed = step(layer, x);
  EXPECT_FALSE(at::equal(first, changed)) << "a hash tells that the weight has changed";
  const auto twin = std::make_shared<Fp8LinearState>(Float8CurrentScaling());  // as in the first step
  EXPECT_TRUE(at::equal(changed, linear_fp8(x, layer->weight + 0, layer->bias, twin)));
}

TEST(Fp8Training, AWeightThatDoesNotChangeGetsTheScalesOfEachStep) {
  torch::nn::Linear layer(16, 8);
  const at::Tensor x = wide({4, 16});
  const auto state = mark(layer);
  step(layer, x);
  state->update_scales();
  const auto resumed = std::make_shared<Fp8LinearState>(state->recipe());
  resumed->load_state_dict(StateReader(saved(*state)));
  const at::Tensor y = step(layer, x);
  EXPECT_TRUE(at::equal(y, linear_fp8(x, layer->weight + 0, layer->bias, resumed)));
  EXPECT_EQ(difference(StateDict{{"f", state->forward.amax_history}},
                       StateDict{{"f", resumed->forward.amax_history}}),
            "")
      << "the weight's amax is that of this step";
}

TEST(Fp8Training, F8_30_GradientsOfMicroBatchesAddUp) {
  torch::nn::Linear layer(16, 8);
  const auto state = mark(layer, Float8CurrentScaling());
  std::vector<at::Tensor> parts;
  at::Tensor sum = at::zeros({8, 16});
  for (int i = 0; i < 3; ++i) parts.push_back(wide({4, 16}));
  for (const at::Tensor& x : parts) {
    layer->zero_grad();
    step(layer, x);
    sum += layer->weight.grad();
  }
  layer->zero_grad();
  for (const at::Tensor& x : parts) step(layer, x);
  EXPECT_TRUE(at::allclose(layer->weight.grad(), sum, 1e-6, 0));
}

TEST(Fp8Training, EvaluationOfAnUntrainedLayerUsesCurrentScaling) {
  torch::nn::Linear layer(16, 8);
  const at::Tensor x = 1e4 * wide({4, 16});
  const auto state = mark(layer);
  const torch::NoGradGuard no_grad;
  const Fp8Autocast region;
  const auto current = std::make_shared<Fp8LinearState>(Float8CurrentScaling());
  EXPECT_TRUE(at::equal(layer(x), linear_fp8(x, layer->weight + 0, layer->bias, current)));
  EXPECT_TRUE(state->has_scales().none());
}

/// Two blocks of FP8 layers, trained with and without recomputation.
struct Blocks {
  explicit Blocks(const Fp8Recipe& recipe) {
    torch::manual_seed(4);
    for (torch::nn::Sequential& block : blocks) {
      torch::nn::Linear first(32, 48), second(48, 32);
      block = torch::nn::Sequential(first, torch::nn::GELU(), second);
      for (const torch::nn::Linear& layer : {first, second}) states.push_back(mark(layer, recipe));
    }
  }
  at::Tensor forward(int block, const at::Tensor& x) {
    const Fp8Autocast region;
    return blocks[block]->forward(x);
  }
  /// Computes the gradients of the blocks' sum of squares.
  void backward(const at::Tensor& x) { forward(1, forward(0, x)).square().sum().backward(); }
  /// Does the same with activations that are recomputed, as torch.utils.checkpoint does.
  void backward_recomputed(const at::Tensor& x) {
    at::Tensor inputs[2] = {x};
    at::Tensor y;
    Fp8AutocastOptions options;
    {
      const torch::NoGradGuard first_pass;
      const Fp8Autocast region;
      options = current_fp8_autocast();
      inputs[1] = forward(0, x), y = forward(1, inputs[1]);
    }
    at::Tensor gradient = 2 * y;
    for (const int block : {1, 0}) {
      const at::Tensor input = inputs[block].detach().set_requires_grad(true);
      at::Tensor again;
      {
        const Fp8Autocast region(options);
        again = blocks[block]->forward(input);
      }
      again.backward(gradient);
      gradient = input.grad();
    }
  }
  std::vector<at::Tensor> end_step() {
    std::vector<at::Tensor> gradients;
    const torch::NoGradGuard no_grad;
    for (const auto& block : blocks)
      for (at::Tensor& parameter : block->parameters()) {
        gradients.push_back(parameter.grad());
        parameter.sub_(parameter.grad(), 0.1);
        parameter.mutable_grad() = at::Tensor();
      }
    for (const auto& state : states) state->update_scales();
    return gradients;
  }

  torch::nn::Sequential blocks[2] = {nullptr, nullptr};
  std::vector<std::shared_ptr<Fp8LinearState>> states;
};

TEST(Fp8Training, RecomputedActivationsGiveTheSameGradients) {
  for (const Fp8Recipe& recipe :
       std::vector<Fp8Recipe>{DelayedScaling{.amax_history_len = 2}, Float8CurrentScaling(),
                              Float8BlockScaling(), MXFP8BlockScaling(), NVFP4BlockScaling()}) {
    Blocks plain(recipe), recomputed(recipe);
    for (int number = 0; number < 3; ++number) {
      const at::Tensor x = 0.01 * torch::randn({8, 32});  // far from what a scale of 1 fits
      plain.backward(x), recomputed.backward_recomputed(x);
      const auto want = plain.end_step(), got = recomputed.end_step();
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_TRUE(at::equal(got[i], want[i])) << recipe_name(recipe) << ", step " << number;
      for (size_t i = 0; i < plain.states.size(); ++i)
        EXPECT_EQ(difference(saved(*recomputed.states[i]), saved(*plain.states[i])), "");
    }
  }
}

TEST(Fp8Training, AScaleOfOneIsAScale) {
  torch::nn::Linear layer(torch::nn::LinearOptions(16, 8).bias(false));
  layer->weight.data().fill_(448);
  const auto state = mark(layer);
  step(layer, torch::full({4, 16}, 448.F));
  EXPECT_TRUE(state->has_scales().none());
  state->update_scales();
  EXPECT_TRUE(at::equal(state->forward.scale, at::ones({3})));
  EXPECT_TRUE(state->has_scales().all());
  const auto loaded = std::make_shared<Fp8LinearState>(state->recipe());
  loaded->load_state_dict(StateReader(saved(*state)));
  EXPECT_TRUE(loaded->has_scales().all());
}

TEST(Fp8Training, ATensorWithoutAScaleUsesCurrentScaling) {
  const at::Tensor x = wide({4, 16});
  const auto step_of = [&](torch::nn::Linear& layer, float gradient) {
    layer->zero_grad();
    const Fp8Autocast region;
    layer(x).backward(at::full({4, 8}, gradient));
    return (layer->weight.grad() + 0).abs().max().item<float>();
  };
  torch::nn::Linear layer(torch::nn::LinearOptions(16, 8).bias(false));
  const auto state = mark(layer);
  step_of(layer, 0);
  state->update_scales();
  EXPECT_EQ(state->has_scales(), Fp8Roles(0b011)) << "the gradient was 0";
  EXPECT_GT(step_of(layer, 1e-7F), 0) << "a scale of 1 would flush it to 0";
  state->update_scales();
  EXPECT_TRUE(state->has_scales().all());
}

TEST(Fp8Training, AnInfiniteAmaxIsNoScale) {
  torch::nn::Linear layer(torch::nn::LinearOptions(16, 8).bias(false));
  const auto state = mark(layer);
  at::Tensor broken = torch::full({4, 16}, 4000.F);
  broken[0][0] = std::numeric_limits<float>::infinity();
  step(layer, broken);
  state->update_scales();
  EXPECT_FALSE(state->has_scales().test(0));
  const at::Tensor x = torch::full({4, 16}, 4000.F);
  {
    const torch::NoGradGuard no_grad;
    const Fp8Autocast region;
    const at::Tensor weight = layer->weight + 0;
    const at::Tensor error = (layer(x) - at::linear(x, weight)).abs();
    EXPECT_TRUE((error <= 0.07 * at::linear(x, weight.abs())).all().item<bool>())
        << "a scale of 1 would saturate the input";
  }
  const int64_t steps = std::get<DelayedScaling>(state->recipe()).amax_history_len;
  for (int64_t i = 0; i < steps; ++i) {
    EXPECT_FALSE(state->has_scales().test(0)) << "inf is in the window, after step " << i;
    step(layer, x);
    state->update_scales();
  }
  EXPECT_TRUE(state->has_scales().test(0));
  EXPECT_EQ(state->forward.scale[0].item<float>(), 448.F / 4000.F);
}

TEST(Fp8Training, ACopyOfALayerHasAStateOfItsOwn) {
  torch::nn::Linear layer(16, 8);
  const at::Tensor x = wide({4, 16});
  const auto state = mark(layer);
  step(layer, x);
  state->update_scales();
  const auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(layer->clone());
  const auto its_state = fp8_state_of(copy->weight);
  ASSERT_TRUE(its_state);
  EXPECT_NE(its_state, state);
  EXPECT_EQ(difference(saved(*its_state), saved(*state)), "");
  its_state->forward.scale.fill_(3);
  EXPECT_NE(state->forward.scale[0].item<float>(), 3);
  EXPECT_EQ(fp8_state_of(torch::ones({2, 2})), nullptr);
}

// No mode ends the steps of a copy, so the scales that it began with would stay for ever.
TEST(Fp8Training, ACopyOfAModesLayerBeginsANewState) {
  for (const Fp8Recipe& recipe :
       std::vector<Fp8Recipe>{DelayedScaling{.amax_history_len = 4}, NVFP4BlockScaling()}) {
    torch::nn::Linear layer(16, 8);
    const auto state = std::make_shared<Fp8LinearState>(recipe, /*seed=*/5);
    mark_weight(layer->weight, std::make_shared<Fp8TrainingRule>(state, /*belongs_to_mode=*/true));
    const at::Tensor x = wide({4, 16});
    step(layer, x);
    state->update_scales();
    const at::Tensor first = layer->weight.detach().clone(), second = layer->weight.detach().clone();
    const auto its_state = fp8_state_of(first);
    EXPECT_TRUE(weight_rule(first)->belongs_to_mode());
    EXPECT_EQ(its_state->has_scales().all(), recipe_name(recipe) == "NVFP4BlockScaling");
    EXPECT_EQ(its_state->stream(), 0);
    EXPECT_NE(its_state->seed(), state->seed());
    EXPECT_NE(its_state->seed(), fp8_state_of(second)->seed());
    const Fp8Autocast region;
    const Fp8Recipe now = its_state->has_scales().all() ? recipe : Float8CurrentScaling();
    EXPECT_TRUE(at::equal(at::linear(x, first),
                          linear_fp8(x, layer->weight + 0, {}, std::make_shared<Fp8LinearState>(now))));
  }
}

TEST(Fp8Training, F8_22_AllLayersOfARankAreReducedInOneCall) {
  const auto make = [](float amax, const DelayedScaling& recipe) {
    auto state = std::make_shared<Fp8LinearState>(recipe);
    state->forward.amax_history.select(0, 0).fill_(amax);
    state->backward.amax_history.select(0, 0).fill_(2 * amax);
    return state;
  };
  const auto a = make(1, {.amax_history_len = 2}), b = make(2, {.amax_history_len = 2}),
             own = make(3, {.amax_history_len = 2, .reduce_amax = false});
  const auto blocks = std::make_shared<Fp8LinearState>(MXFP8BlockScaling());
  int calls = 0;
  update_scales({a.get(), blocks.get(), own.get(), b.get()}, [&](const at::Tensor& amaxes) {
    ++calls;
    EXPECT_TRUE(at::equal(amaxes, torch::tensor({1., 1., 1., 2., 2., 2., 2., 2., 4., 4.}, at::kFloat)));
    amaxes.fill_(7);  // of another rank
  });
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(at::equal(a->forward.scale, at::full({3}, 448.F / 7)));
  EXPECT_TRUE(at::equal(b->backward.scale, at::full({2}, 57344.F / 7)));
  EXPECT_TRUE(at::equal(own->forward.scale, at::full({3}, 448.F / 3)));
}

TEST(Fp8Training, SeveralThreadsMultiplyAtTheSameTime) {
  torch::nn::Linear layer(64, 32);
  const at::Tensor x = wide({16, 64});
  const auto state = mark(layer);
  const at::Tensor expected = step(layer, x);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 20; ++n) {
        const Fp8Autocast region;
        EXPECT_TRUE(at::equal(layer(x), expected));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Fp8Training, ARuleWithoutAStateIsRefused) {
  EXPECT_THAT(error_of([] { Fp8TrainingRule(nullptr); }), testing::HasSubstr("got no state"));
}

}  // namespace
}  // namespace mantissa::fp8_training_test
