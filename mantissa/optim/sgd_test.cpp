#include "mantissa/optim/sgd.h"

#include <sstream>
#include <string>

#include <ATen/Version.h>

#include "mantissa/optim/test_support_internal.h"

namespace mantissa::sgd_test {
namespace {

using torch::optim::OptimizerParamGroup;

/// 25 steps of Python's torch 2.11.0, printed with float.hex().
struct Recorded {
  std::string name;
  SGDOptions options;
  at::ScalarType dtype;
  std::vector<double> parameter;
};

const SGDOptions kPlain = SGDOptions(0.05);
const SGDOptions kMomentum = SGDOptions(0.02).momentum(0.9).weight_decay(0.01);
const SGDOptions kDampening = SGDOptions(0.05).momentum(0.7).dampening(0.3).weight_decay(0.05).maximize(true);
const SGDOptions kNesterov = SGDOptions(0.03).momentum(0.95).weight_decay(0.1).nesterov(true);

const std::vector<Recorded> kRecorded = {
    {"plain", kPlain, at::kFloat, {0x1.81p-1, -0x1.3f3332p+0, 0x1.999998p-11, 0x1.81999ap+1, -0x1.4p-2}},
    {"momentum, L2",
     kMomentum,
     at::kFloat,
     {0x1.74883ap-1, -0x1.2dfebcp+0, -0x1.c59098p-9, 0x1.7692a2p+1, -0x1.374a68p-2}},
    {"dampening, maximize",
     kDampening,
     at::kFloat,
     {0x1.4ccd18p-1, -0x1.1a2a46p+0, 0x1.9f905ap-8, 0x1.4c1602p+1, -0x1.144944p-2}},
    {"nesterov, L2",
     kNesterov,
     at::kFloat,
     {0x1.38759ap-2, -0x1.d2c7b8p-2, -0x1.f4417ep-8, 0x1.3f0a14p+0, -0x1.05cbbap-3}},
    {"plain",
     kPlain,
     at::kDouble,
     {0x1.81p-1, -0x1.3f33333333333p+0, 0x1.9999999999999p-11, 0x1.8199999999999p+1, -0x1.4p-2}},
    {"momentum, L2",
     kMomentum,
     at::kDouble,
     {0x1.748838ea876cap-1, -0x1.2dfebcdd5bae7p+0, -0x1.c590a48682c73p-9, 0x1.76929e082ea74p+1,
      -0x1.374a69ae5aee6p-2}},
    {"dampening, maximize",
     kDampening,
     at::kDouble,
     {0x1.4ccd1b75fa3bap-1, -0x1.1a2a477e06e1cp+0, 0x1.9f90559091082p-8, 0x1.4c15fc21a35p+1,
      -0x1.144944d07ee98p-2}},
    {"nesterov, L2",
     kNesterov,
     at::kDouble,
     {0x1.3875956832814p-2, -0x1.d2c7b31066c0ap-2, -0x1.f4417e68b0a34p-8, 0x1.3f0a0f1e289c9p+0,
      -0x1.05cbb5b30d0fcp-3}},
    {"plain", kPlain, at::kBFloat16, {0x1.8p-1, -0x1.3ep+0, 0x1.9cp-11, 0x1.82p+1, -0x1.4p-2}},
    {"momentum, L2", kMomentum, at::kBFloat16, {0x1.8p-1, -0x1.2cp+0, -0x1.ccp-9, 0x1.7cp+1, -0x1.3cp-2}},
    {"dampening, maximize",
     kDampening,
     at::kBFloat16,
     {0x1.4ep-1, -0x1.18p+0, 0x1.9ep-8, 0x1.48p+1, -0x1.18p-2}},
    {"nesterov, L2", kNesterov, at::kBFloat16, {0x1.32p-2, -0x1.dcp-2, -0x1.ecp-8, 0x1.3cp+0, -0x1.0ap-3}},
    {"plain", kPlain, at::kHalf, {0x1.81p-1, -0x1.3f4p+0, 0x1.994p-11, 0x1.81cp+1, -0x1.4p-2}},
    {"momentum, L2", kMomentum, at::kHalf, {0x1.744p-1, -0x1.2ep+0, -0x1.c68p-9, 0x1.764p+1, -0x1.374p-2}},
    {"dampening, maximize",
     kDampening,
     at::kHalf,
     {0x1.4ccp-1, -0x1.1ap+0, 0x1.ap-8, 0x1.4bcp+1, -0x1.15p-2}},
    {"nesterov, L2", kNesterov, at::kHalf, {0x1.38cp-2, -0x1.d28p-2, -0x1.f58p-8, 0x1.3e4p+0, -0x1.064p-3}},
};

// tests/parity/test_optimizers.py compares bit for bit with Python on the same CPU.
TEST(SGD, PE09_FollowsWhatPythonRecorded) {
  for (const Recorded& recorded : kRecorded) {
    const at::Tensor p = start_parameter(recorded.dtype);
    SGD optimizer({p}, recorded.options);
    take_steps(optimizer, 0, 25);
    EXPECT_TRUE(is_near_recorded(p, recorded.parameter, recorded.options.lr()))
        << recorded.name << " in " << recorded.dtype << "\n"
        << p;
  }
}

TEST(SGD, TiedParameterIsUpdatedOnce) {
  const at::Tensor tied = start_parameter(at::kFloat), once = start_parameter(at::kFloat);
  SGD optimizer(std::vector<at::Tensor>{tied, tied, once, tied}, kMomentum);
  ASSERT_EQ(optimizer.param_groups()[0].params().size(), 2U);
  EXPECT_TRUE(optimizer.param_groups()[0].params()[1].is_same(once)) << "the order is the first mentions'";
  take_steps(optimizer, 0, 3);
  EXPECT_TRUE(at::equal(tied, once)) << tied << once;
}

TEST(SGD, TiedWeightsOfModuleAreUpdatedOnce) {
  torch::nn::Linear first(3, 3), second(3, 3);
  second->weight = second->register_parameter("weight_of_first", first->weight);
  torch::nn::Sequential model(first, second);
  const size_t named = model->parameters().size();
  SGD optimizer(model->parameters(), 1.0);
  EXPECT_EQ(optimizer.param_groups()[0].params().size(), named - 1);
  const at::Tensor before = first->weight.detach().clone();
  for (at::Tensor& p : optimizer.param_groups()[0].params()) p.mutable_grad() = at::ones_like(p);
  optimizer.step();
  EXPECT_TRUE(at::equal(first->weight, before - 1));
}

TEST(SGD, WithoutMomentumOrGradientRemembersNothing) {
  const at::Tensor with = start_parameter(at::kFloat), without = start_parameter(at::kFloat);
  SGD plain({with}, kPlain);
  take_steps(plain, 0, 2);
  EXPECT_TRUE(plain.state().empty());
  SGD optimizer(std::vector<at::Tensor>{with, without}, kMomentum);
  with.mutable_grad() = gradient(0, at::kFloat);
  optimizer.step();
  EXPECT_EQ(optimizer.state().size(), 1U);
  EXPECT_TRUE(at::equal(without, start_parameter(at::kFloat)));
}

TEST(SGD, FirstMomentumIsACopyOfTheGradient) {
  const at::Tensor p = start_parameter(at::kFloat);
  SGD optimizer({p}, SGDOptions(0.5).momentum(0.5).dampening(0.75));
  p.mutable_grad() = at::ones_like(p);
  optimizer.step();
  EXPECT_TRUE(at::equal(p, start_parameter(at::kFloat) - 0.5)) << "the first gradient is not dampened";
  p.mutable_grad().zero_();
  optimizer.step();
  EXPECT_TRUE(at::equal(p, start_parameter(at::kFloat) - 0.75)) << "zeroing the gradient kept the momentum";
}

TEST(SGD, NanAndInfGradientsPoisonTheirElementAlone) {
  const at::Tensor p = start_parameter(at::kFloat);
  SGD optimizer({p}, kNesterov);
  p.mutable_grad() = at::tensor({NAN, INFINITY, 0.5F, 0.5F, 0.5F});
  optimizer.step();
  EXPECT_TRUE(at::equal(p.isfinite(), torch::tensor({false, false, true, true, true}))) << p;
}

TEST(SGD, EmptyAndZeroDimensionalParameters) {
  const at::Tensor empty = at::zeros({0, 3}).set_requires_grad(true),
                   scalar = at::ones({}).set_requires_grad(true);
  SGD optimizer(std::vector<at::Tensor>{empty, scalar}, SGDOptions(0.5).momentum(0.5));
  for (int step = 0; step < 2; ++step) {
    empty.mutable_grad() = at::zeros_like(empty);
    scalar.mutable_grad() = at::ones({});
    optimizer.step();
  }
  EXPECT_EQ(empty.sizes(), (at::IntArrayRef{0, 3}));
  EXPECT_EQ(scalar.item<float>(), -0.25F);
}

TEST(SGD, SparseGradientsMoveTheirRowsAsDenseOnesDo) {
  const at::Tensor dense = at::ones({4, 2}).set_requires_grad(true),
                   sparse = at::ones({4, 2}).set_requires_grad(true);
  const SGDOptions options = SGDOptions(0.25).momentum(0.5).nesterov(true);
  SGD dense_optimizer({dense}, options), sparse_optimizer({sparse}, options);
  for (int64_t step = 0; step < 3; ++step) {
    dense.mutable_grad() = at::zeros({4, 2});
    dense.mutable_grad()[step].fill_(0.5);
    sparse.mutable_grad() = dense.grad().to_sparse(1);
    dense_optimizer.step();
    sparse_optimizer.step();
  }
  EXPECT_TRUE(at::equal(sparse, dense)) << sparse << dense;
  EXPECT_FALSE(at::equal(dense, at::ones({4, 2})));
}

TEST(SGD, RefusesSparseGradientWithWeightDecayBeforeAnyParameterMoves) {
  const at::Tensor dense = start_parameter(at::kFloat), sparse = start_parameter(at::kFloat);
  SGD optimizer(std::vector<at::Tensor>{dense, sparse}, kMomentum);
  dense.mutable_grad() = gradient(0, at::kFloat);
  sparse.mutable_grad() = gradient(0, at::kFloat).to_sparse();
  EXPECT_THROW(optimizer.step(), c10::Error);
  EXPECT_TRUE(at::equal(dense, start_parameter(at::kFloat)));
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(SGD, GroupsHaveTheirOwnOptionsAndFollowSetLr) {
  const at::Tensor slow = start_parameter(at::kFloat), still = start_parameter(at::kFloat);
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{slow},
                      std::make_unique<SGDOptions>(SGDOptions(0.25).weight_decay(1)));
  groups.emplace_back(std::vector<at::Tensor>{still});
  SGD optimizer(groups, 0.5);
  optimizer.param_groups()[1].options().set_lr(0);
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.25);
  slow.mutable_grad() = at::zeros_like(slow);
  still.mutable_grad() = gradient(1, at::kFloat);
  optimizer.step();
  EXPECT_TRUE(at::equal(slow, start_parameter(at::kFloat) * 0.75));
  EXPECT_TRUE(at::equal(still, start_parameter(at::kFloat)));
}

TEST(SGD, ClosureRunsWithGradientsAndItsLossComesBack) {
  const at::Tensor p = start_parameter(at::kFloat);
  SGD optimizer({p}, kMomentum);
  at::NoGradGuard no_grad;
  const at::Tensor loss = optimizer.step([&] {
    const at::Tensor value = p.square().sum();
    value.backward();
    return value;
  });
  EXPECT_FLOAT_EQ(loss.item<float>(), start_parameter(at::kFloat).square().sum().item<float>());
  EXPECT_FALSE(at::equal(p, start_parameter(at::kFloat)));
}

TEST(SGD, RefusesOptionsOutOfRangeByNameAndValue) {
  const at::Tensor p = start_parameter(at::kFloat);
  const auto error = [&](const SGDOptions& options) { return value_error([&] { SGD({p}, options); }); };
  EXPECT_THAT(error(SGDOptions(-0.5)), testing::HasSubstr("learning rate -0.5"));
  EXPECT_THAT(error(SGDOptions(NAN)), testing::HasSubstr("learning rate nan"));
  EXPECT_THAT(error(SGDOptions().momentum(-1)), testing::HasSubstr("momentum -1"));
  EXPECT_THAT(error(SGDOptions().weight_decay(-3)), testing::HasSubstr("weight_decay -3"));
  EXPECT_THAT(error(SGDOptions().nesterov(true)), testing::HasSubstr("nesterov with momentum 0"));
  EXPECT_THAT(error(SGDOptions().nesterov(true).momentum(0.9).dampening(0.5)),
              testing::HasSubstr("dampening 0.5"));
  EXPECT_THAT(value_error([] { SGD(std::vector<at::Tensor>{}); }), testing::HasSubstr("no parameters"));
  EXPECT_THAT(value_error([&] {
                std::vector<OptimizerParamGroup> groups;
                groups.emplace_back(std::vector<at::Tensor>{p}, std::make_unique<SGDOptions>(-7.0));
                SGD optimizer(groups);
              }),
              testing::HasSubstr("learning rate -7"));
}

TEST(SGD, RefusesParameterInTwoGroups) {
  const at::Tensor p = start_parameter(at::kFloat);
  EXPECT_THAT(value_error([&] {
                SGD optimizer(std::vector<OptimizerParamGroup>{std::vector<at::Tensor>{p, p},
                                                               std::vector<at::Tensor>{p}});
              }),
              testing::AllOf(testing::HasSubstr("shape [5]"), testing::HasSubstr("groups 0 and 1")));
}

TEST(SGD, AGroupAddedLaterKeepsItsOptions) {
  const at::Tensor first = start_parameter(at::kFloat), later = start_parameter(at::kFloat);
  SGD optimizer({first}, SGDOptions(0.5));
  optimizer.add_param_group({{later}, std::make_unique<SGDOptions>(0.25)});
  optimizer.add_param_group(OptimizerParamGroup({start_parameter(at::kFloat)}));
  EXPECT_EQ(optimizer.param_groups()[1].options().get_lr(), 0.25);
  EXPECT_EQ(optimizer.param_groups()[2].options().get_lr(), 0.5);
  EXPECT_THAT(value_error([&] {
                optimizer.add_param_group({{later}, std::make_unique<SGDOptions>(-1)});
              }),
              testing::HasSubstr("learning rate -1"));
  EXPECT_EQ(optimizer.param_groups().size(), 3U);
}

TEST(SGD, GroupsAddedLaterAreLookedAtToo) {
  const at::Tensor first = start_parameter(at::kFloat), tied = start_parameter(at::kFloat);
  SGD optimizer({first}, kMomentum);
  optimizer.add_param_group(std::vector<at::Tensor>{tied, tied});
  take_steps(optimizer, 0, 2);
  EXPECT_TRUE(at::equal(tied, first));
  const at::Tensor before = first.detach().clone();
  SGD wrong({first}, kMomentum);
  const auto again = [&] { wrong.add_param_group(std::vector<at::Tensor>{first}); };
  EXPECT_THAT(value_error(again), testing::HasSubstr("groups 0 and 1"));
  EXPECT_THAT(value_error([&] { wrong.add_param_group(std::vector<at::Tensor>{at::Tensor()}); }),
              testing::HasSubstr("undefined tensor"));
  EXPECT_EQ(wrong.param_groups().size(), 1U);
  // libtorch's own function, which calls nothing in the optimizer.
  static_cast<torch::optim::Optimizer&>(wrong).add_param_group(std::vector<at::Tensor>{first});
  EXPECT_THAT(value_error([&] { wrong.step(); }), testing::HasSubstr("groups 0 and 1"));
  EXPECT_TRUE(at::equal(first, before));
}

TEST(SGD, RefusesAFileThatIsNotItsOwn) {
  const at::Tensor p = start_parameter(at::kFloat), wide = at::ones({2, 5}).set_requires_grad(true);
  SGD optimizer({p}, kMomentum), other_net({wide}, kNesterov);
  torch::optim::AdamW adamw({p}, 0.3);
  EXPECT_THAT(value_error([&] { save_and_load(adamw, optimizer); }),
              testing::HasSubstr("SGD::load: the file is of Adam or AdamW"));
  wide.mutable_grad() = at::ones({2, 5});
  other_net.step();
  EXPECT_THAT(
      value_error([&] { save_and_load(other_net, optimizer); }),
      testing::HasSubstr("momentum_buffer of shape [2, 5] for parameter 0 of group 0, whose shape is [5]"));
  EXPECT_EQ(static_cast<const SGDOptions&>(optimizer.param_groups()[0].options()).momentum(), 0.9);
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(SGD, RefusesAnotherOptimizersGroupOptions) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{start_parameter(at::kFloat)},
                      std::make_unique<torch::optim::SGDOptions>(0.1));
  EXPECT_THROW(SGD optimizer(groups), c10::TypeError);
}

TEST(SGD, SavedInTheMiddleContinuesBitForBit) {
  const at::Tensor p = start_parameter(at::kBFloat16);
  SGD straight({p}, kDampening);
  take_steps(straight, 0, 5);
  std::stringstream file;
  torch::save(straight, file);
  const at::Tensor q = p.detach().clone().set_requires_grad(true);
  SGD resumed({q}, 123.0);
  torch::load(resumed, file);
  const auto& options = static_cast<const SGDOptions&>(resumed.param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.05);
  EXPECT_EQ(options.dampening(), 0.3);
  EXPECT_TRUE(options.maximize());
  take_steps(straight, 5, 9);
  take_steps(resumed, 5, 9);
  EXPECT_TRUE(at::equal(p, q));
}

TEST(SGD, TakesOverWhatLibtorchsSGDSaved) {
  const at::Tensor theirs = start_parameter(at::kFloat);
  torch::optim::SGD stock({theirs}, torch::optim::SGDOptions(0.02).momentum(0.9).weight_decay(0.01));
  take_steps(stock, 0, 5);
  std::stringstream file;
  torch::save(stock, file);
  const at::Tensor ours = theirs.detach().clone().set_requires_grad(true);
  SGD optimizer({ours});
  torch::load(optimizer, file);
  take_steps(stock, 5, 9);
  take_steps(optimizer, 5, 9);
  EXPECT_TRUE(at::equal(ours, theirs)) << ours << theirs;
}

}  // namespace
}  // namespace mantissa::sgd_test
