#include "mantissa/precision/master_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/amp/gradient_hooks.h"
#include "mantissa/optim/adam.h"
#include "mantissa/optim/optimizers_8bit.h"
#include "mantissa/optim/steps_16bit_weights.h"

namespace mantissa::master_weights_test {
namespace {

torch::nn::Linear half_net(at::ScalarType dtype) {
  torch::nn::Linear net(2, 1);
  net->to(dtype);
  net->weight.data().fill_(1);
  net->bias.data().fill_(1);
  return net;
}

/// A user's optimizer that keeps something for each of its parameters.
template <typename Optimizer>
class Observing : public Optimizer, public Steps16BitWeights {
 public:
  using Optimizer::Optimizer;
  void replaced_parameter(const at::Tensor& before, const at::Tensor& now) override {
    replaced.emplace_back(before, now);
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> replaced;
};

TEST(MasterWeights, TellAnOptimizerWhichParametersTheyReplace) {
  torch::nn::Linear net = half_net(at::kBFloat16);
  Observing<torch::optim::SGD> optimizer(net->parameters(), 0.1);
  const MasterWeights masters(optimizer);
  ASSERT_EQ(optimizer.replaced.size(), 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(optimizer.replaced[i].first.is_same(net->parameters()[i]));
    EXPECT_TRUE(optimizer.replaced[i].second.is_same(optimizer.param_groups()[0].params()[i]));
  }
}

/// Has a state from its constructor, which it cannot load again.
struct Unloadable final : Observing<torch::optim::Adagrad> {
  using Observing::Observing;
  void load(torch::serialize::InputArchive& /*archive*/) override { throw std::runtime_error("no load"); }
};

TEST(MasterWeights, TellAnOptimizerThatTheyCouldNotReplaceItsParameters) {
  torch::nn::Linear net = half_net(at::kBFloat16);
  Unloadable optimizer(net->parameters());
  EXPECT_THROW(MasterWeights{optimizer}, std::runtime_error);
  ASSERT_EQ(optimizer.replaced.size(), 4);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(optimizer.param_groups()[0].params()[i].is_same(net->parameters()[i]));
    EXPECT_TRUE(optimizer.replaced[2 + i].first.is_same(optimizer.replaced[i].second));
    EXPECT_TRUE(optimizer.replaced[2 + i].second.is_same(net->parameters()[i]));
  }
}

class MasterWeightsIn : public testing::TestWithParam<at::ScalarType> {};

TEST_P(MasterWeightsIn, KeepUpdatesThat16BitsWouldLose) {
  torch::nn::Linear net = half_net(GetParam());
  torch::optim::SGD optimizer(net->parameters(), 1e-4);
  MasterWeights masters(optimizer);
  for (int step = 0; step < 1000; ++step) {
    optimizer.zero_grad();
    net->weight.sum().backward();
    EXPECT_FALSE(net->weight.grad().defined());
    optimizer.step();
    masters.copy_to_model();
  }
  EXPECT_NEAR(net->weight[0][0].item<float>(), 0.9, 5e-3);  // half an ulp of bf16 there is 0.002
  EXPECT_EQ(net->weight.scalar_type(), GetParam());
  EXPECT_EQ(net->bias[0].item<float>(), 1);  // the bias had no gradient
}

TEST_P(MasterWeightsIn, SumGradientsInFloat32) {
  torch::nn::Linear net = half_net(GetParam());
  torch::optim::SGD optimizer(net->parameters(), 1.0);
  MasterWeights masters(optimizer);
  for (int batch = 0; batch < 2049; ++batch) (net->weight.sum() / 4).backward();
  const at::Tensor sum = optimizer.param_groups()[0].params()[0].grad();
  EXPECT_EQ(sum.scalar_type(), at::kFloat);
  EXPECT_EQ(sum[0][0].item<float>(), 512.25);
  optimizer.zero_grad();
  EXPECT_FALSE(optimizer.param_groups()[0].params()[0].grad().defined());
}

INSTANTIATE_TEST_SUITE_P(Dtypes, MasterWeightsIn, testing::Values(at::kHalf, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(MasterWeights, LeaveWideParametersAndTieSharedOnes) {
  torch::nn::Linear net = half_net(at::kHalf);
  const at::Tensor wide = torch::ones(1, torch::requires_grad());
  torch::optim::SGD optimizer({net->weight, net->weight, wide}, 1.0);
  MasterWeights masters(optimizer);
  const auto& parameters = optimizer.param_groups()[0].params();
  EXPECT_TRUE(parameters[0].is_same(parameters[1]));
  EXPECT_TRUE(parameters[2].is_same(wide));
}

TEST(MasterWeights, TakeOverAGradientThatIsThere) {
  torch::nn::Linear net = half_net(at::kHalf);
  net->weight.sum().backward();
  torch::optim::SGD optimizer(net->parameters(), 1.0);
  MasterWeights masters(optimizer);
  EXPECT_FALSE(net->weight.grad().defined());
  EXPECT_EQ(optimizer.param_groups()[0].params()[0].grad()[0][0].item<float>(), 1);
}

TEST(MasterWeights, SumSparseAndDenseGradientsInAnyOrder) {
  for (const bool sparse_first : {true, false}) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(3, 1).sparse(true));
    table->to(at::kHalf);
    torch::optim::SGD optimizer(table->parameters(), 1.0);
    MasterWeights masters(optimizer);
    const auto sparse = [&] { table(torch::tensor({0, 2, 2})).to(at::kFloat).sum().backward(); };
    const auto dense = [&] { table->weight.to(at::kFloat).sum().backward(); };
    if (sparse_first) sparse(), dense();
    if (!sparse_first) dense(), sparse();
    const at::Tensor sum = optimizer.param_groups()[0].params()[0].grad().to_dense();
    EXPECT_TRUE(at::equal(sum, torch::tensor({{2.0F}, {1.0F}, {3.0F}}))) << sum;
  }
}

TEST(MasterWeights, TakeOverWhatIsWrittenThroughDataAtAnyPlace) {
  const int64_t large = 3 * (int64_t{1} << 18) / 2;  // more than one piece of the comparison
  const at::Tensor long_one = torch::ones({large}, at::kHalf).requires_grad_(),
                   turned = torch::ones({2, 3}, at::kHalf).t().requires_grad_(),
                   strided = torch::ones({4, 2}, at::kHalf).select(1, 0).requires_grad_(),
                   empty = torch::ones({0}, at::kHalf).requires_grad_();
  torch::optim::SGD optimizer({long_one, turned, strided, empty}, 1.0);
  MasterWeights masters(optimizer);
  const auto& copies = optimizer.param_groups()[0].params();
  {
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& copy : copies) at::Tensor(copy).add_(0x1p-14);  // below half an fp16 ulp
  }
  masters.copy_to_model();
  long_one.data()[large - 1] = 5;
  turned.data()[1][0] = 5;
  strided.data()[3] = 5;
  masters.copy_changes_from_model();
  const float kept = 1 + 0x1p-14F;
  EXPECT_EQ(copies[0][large - 1].item<float>(), 5);
  EXPECT_EQ(copies[0][large - 2].item<float>(), kept);
  EXPECT_TRUE(at::equal(copies[1], torch::tensor({{kept, kept}, {5.F, kept}, {kept, kept}})));
  EXPECT_TRUE(at::equal(copies[2], torch::tensor({kept, kept, kept, 5.F})));
}

TEST(MasterWeights, TakeOverAWeightThatIsTransposedInItsPlace) {
  const at::Tensor weight = torch::tensor({{1.F, 2.F}, {3.F, 4.F}}).to(at::kHalf).requires_grad_();
  torch::optim::SGD optimizer({weight}, 1.0);
  MasterWeights masters(optimizer);
  weight.set_data(weight.data().t());  // the same bytes, and other values
  masters.copy_changes_from_model();
  masters.copy_to_model();
  EXPECT_TRUE(at::equal(weight, torch::tensor({{1.F, 3.F}, {2.F, 4.F}}).to(at::kHalf))) << weight;
}

TEST(MasterWeights, RefuseAnOptimizerThatHasSteppedAndLeaveItAsItWas) {
  torch::nn::Linear net = half_net(at::kHalf);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(1.0).momentum(0.9));
  net->weight.sum().backward();
  optimizer.step();
  EXPECT_THAT([&] { MasterWeights{optimizer}; },
              testing::ThrowsMessage<c10::ValueError>(testing::HasSubstr("the optimizer has stepped")));
  EXPECT_TRUE(optimizer.param_groups()[0].params()[0].is_same(net->weight));
  EXPECT_TRUE(net->weight.grad().defined());
}

TEST(MasterWeights, TakeOverAStateWhoseStepCounterIsStill0) {
  for (const at::Tensor& step : {torch::zeros({}), torch::ones({}), torch::zeros({2})}) {
    torch::nn::Linear net = half_net(at::kBFloat16);
    Adam optimizer(net->parameters());
    for (const at::Tensor& parameter : net->parameters()) {
      auto state = std::make_unique<AdamParamState>();
      state->step(step.clone())
          .exp_avg(torch::zeros_like(parameter))
          .exp_avg_sq(torch::zeros_like(parameter));
      optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
    if (step.numel() == 1 && step.item<float>() == 0) {
      EXPECT_NO_THROW(MasterWeights{optimizer});
    } else {
      EXPECT_THROW(MasterWeights{optimizer}, c10::ValueError) << step;
    }
  }
}

// torch::optim::Adagrad's constructor makes its sums, in the weights' dtype.
TEST(MasterWeights, TakeOverWhatAnOptimizersConstructorHasMade) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    torch::nn::Linear net = half_net(dtype);
    const at::Tensor wide = torch::ones(1, torch::requires_grad());
    const auto options = torch::optim::AdagradOptions(0.01).initial_accumulator_value(0.25);
    torch::optim::Adagrad optimizer({net->weight, net->bias, wide}, options);
    MasterWeights masters(optimizer);
    const at::Tensor reference = torch::ones({1, 2}, torch::requires_grad());
    torch::optim::Adagrad expected({reference}, options);
    for (int step = 0; step < 100; ++step) {
      optimizer.zero_grad();
      expected.zero_grad();
      (net->weight.sum().to(at::kFloat) + wide.sum()).backward();
      reference.sum().backward();
      optimizer.step();
      expected.step();
      masters.copy_to_model();
    }
    const auto& parameters = optimizer.param_groups()[0].params();
    EXPECT_TRUE(at::equal(parameters[0], reference)) << parameters[0] << reference;
    EXPECT_TRUE(at::equal(parameters[2], reference[0].slice(0, 0, 1)));
    EXPECT_EQ(optimizer.state().size(), 3U)
        << "one of each copy and of the wide one, none of the 16-bit ones";
  }
}

TEST(MasterWeights, TakeOverTheOverridesOfAnEightBitOptimizer) {
  torch::nn::Linear net = half_net(at::kHalf);
  SGD8bit optimizer(net->parameters(), SGDOptions(0.5).momentum(0.5), {.min_8bit_size = 1});
  optimizer.override_config(net->weight, {.optim_bits = 32, .lr = 0.25});
  const MasterWeights masters(optimizer);
  const auto& parameters = optimizer.param_groups()[0].params();
  EXPECT_EQ(optimizer.optim_bits(parameters[0]), 32);
  EXPECT_EQ(optimizer.optim_bits(parameters[1]), 8);
  net->forward(at::ones({1, 2}, at::kHalf)).sum().backward();
  optimizer.step();
  EXPECT_EQ(parameters[0][0][0].item<float>(), 0.75);
  EXPECT_EQ(parameters[1][0].item<float>(), 0.5);
}

TEST(MasterWeights, AreSteppedOnlyByAnOptimizerThatHasThemInTheirPlaces) {
  torch::nn::Linear net = half_net(at::kHalf), another = half_net(at::kHalf);
  using Group = torch::optim::OptimizerParamGroup;
  torch::optim::SGD optimizer({Group({net->weight}), Group({net->bias})}, torch::optim::SGDOptions(1.0));
  const torch::optim::SGD other(another->parameters(), 1.0);
  const MasterWeights masters(optimizer);
  EXPECT_TRUE(masters.are_stepped_by(optimizer));
  EXPECT_FALSE(masters.are_stepped_by(other));
  auto& groups = optimizer.param_groups();
  for (Group& group : groups) {
    const at::Tensor master = group.params()[0];
    group.params()[0] = torch::ones(1);
    EXPECT_FALSE(masters.are_stepped_by(optimizer)) << "another parameter has its place";
    group.params().clear();
    EXPECT_FALSE(masters.are_stepped_by(optimizer)) << "its group is empty";
    group.params().push_back(master);
    EXPECT_TRUE(masters.are_stepped_by(optimizer));
  }
  groups.pop_back();
  EXPECT_FALSE(masters.are_stepped_by(optimizer)) << "its group is gone";
}

TEST(MasterWeights, AreMadeOnceForAParameterThatIsAddedToAnyGroup) {
  torch::nn::Linear net = half_net(at::kHalf);
  torch::optim::SGD optimizer({net->weight}, 1.0);
  MasterWeights masters(optimizer);
  EXPECT_FALSE(masters.add_parameters(optimizer));
  auto& parameters = optimizer.param_groups()[0].params();
  parameters.push_back(net->bias);
  EXPECT_TRUE(masters.add_parameters(optimizer));
  EXPECT_EQ(parameters[1].scalar_type(), at::kFloat);
  EXPECT_TRUE(masters.are_stepped_by(optimizer));
  EXPECT_FALSE(masters.add_parameters(optimizer));
}

TEST(MasterWeights, TellAnOptimizerWhichAddedParametersTheyReplace) {
  torch::nn::Linear net = half_net(at::kHalf);
  Observing<torch::optim::SGD> optimizer(std::vector<at::Tensor>{net->weight}, 0.1);
  MasterWeights masters(optimizer);
  optimizer.replaced.clear();
  optimizer.param_groups()[0].params().push_back(net->bias);
  EXPECT_TRUE(masters.add_parameters(optimizer));
  ASSERT_EQ(optimizer.replaced.size(), 1);
  EXPECT_TRUE(optimizer.replaced[0].first.is_same(net->bias));
  EXPECT_TRUE(optimizer.replaced[0].second.is_same(optimizer.param_groups()[0].params()[1]));
}

TEST(MasterWeights, TellWhoSendsAGradientWhereItIs) {
  torch::nn::Linear net = half_net(at::kHalf);
  torch::optim::SGD optimizer({net->weight}, 1.0);
  const MasterWeights masters(optimizer);
  at::Tensor sent;
  const GradientHook send(net->weight, GradientHookOrder::kReduce,
                          [&](at::Tensor& holder) { sent = holder; });
  net->weight.sum().backward();
  EXPECT_TRUE(sent.is_same(optimizer.param_groups()[0].params()[0]));
}

TEST(MasterWeights, AddToAGradientInItsPlace) {
  torch::nn::Linear net = half_net(at::kHalf);
  torch::optim::SGD optimizer({net->weight}, 1.0);
  const MasterWeights masters(optimizer);
  net->weight.sum().backward();
  const at::Tensor first = optimizer.param_groups()[0].params()[0].grad();
  net->weight.sum().backward();
  EXPECT_EQ(first[0][0].item<float>(), 2);
}

TEST(MasterWeights, LeaveTheStateOfDoublesAlone) {
  torch::nn::Linear net = half_net(at::kHalf);
  const at::Tensor wide = torch::ones(1, torch::dtype(at::kDouble).requires_grad(true));
  torch::optim::Adagrad optimizer({net->weight, wide}, torch::optim::AdagradOptions(0.01));
  const MasterWeights masters(optimizer);
  const auto& state = optimizer.state().at(wide.unsafeGetTensorImpl());
  EXPECT_EQ(static_cast<const torch::optim::AdagradParamState&>(*state).sum().scalar_type(), at::kDouble);
}

TEST(MasterWeights, RefuseAnOptimizerThatHasCountedAStep) {
  torch::nn::Linear net = half_net(at::kHalf);
  torch::optim::Adagrad optimizer({net->weight});
  net->weight.sum().backward();
  optimizer.step();
  EXPECT_THAT([&] { MasterWeights{optimizer}; },
              testing::ThrowsMessage<c10::ValueError>(testing::HasSubstr("the optimizer has stepped")));
}

TEST(MasterWeights, GiveGradientsBackAtTheirEndButNotASuccessors) {
  torch::nn::Linear net = half_net(at::kHalf);
  torch::optim::SGD first(net->parameters(), 1.0), second(net->parameters(), 1.0);
  auto old = std::make_unique<MasterWeights>(first);
  auto successor = std::make_unique<MasterWeights>(second);
  old.reset();
  net->weight.sum().backward();
  EXPECT_FALSE(net->weight.grad().defined());
  EXPECT_TRUE(second.param_groups()[0].params()[0].grad().defined());
  successor.reset();
  net->weight.sum().backward();
  EXPECT_TRUE(net->weight.grad().defined());
}

}  // namespace
}  // namespace mantissa::master_weights_test
