#include "mantissa/optim/adam.h"

#include <sstream>
#include <string>

#include <ATen/Version.h>

#include "mantissa/optim/adamw.h"
#include "mantissa/optim/test_support_internal.h"

namespace mantissa::adam_test {
namespace {

using torch::optim::OptimizerParamGroup;

/// 25 steps of Python's torch 2.11.0, printed with float.hex().
struct Recorded {
  std::string name;
  bool decoupled;
  AdamOptions options;
  at::ScalarType dtype;
  std::vector<double> parameter;
};

const AdamOptions kAdamW = AdamWOptions(0.01).betas({0.9, 0.95}).weight_decay(0.1);
const AdamOptions kAdamWMaximize = AdamWOptions(0.01).amsgrad(true).maximize(true);
const AdamOptions kAdam = AdamOptions(0.02).weight_decay(0.05);
const AdamOptions kAdamAmsgrad = AdamOptions(0.02).betas({0.5, 0.7}).eps(1e-4).amsgrad(true);

const std::vector<Recorded> kRecorded = {
    {"AdamW",
     true,
     kAdamW,
     at::kFloat,
     {0x1.7f7adap-1, -0x1.32a90cp+0, -0x1.053258p-5, 0x1.7a1e5ap+1, -0x1.4a37dep-2}},
    {"AdamW, amsgrad, maximize",
     true,
     kAdamWMaximize,
     at::kFloat,
     {0x1.75f502p-1, -0x1.44ca62p+0, 0x1.27f274p-5, 0x1.7b5a94p+1, -0x1.2cd4b2p-2}},
    {"Adam, L2",
     false,
     kAdam,
     at::kFloat,
     {0x1.a03e5cp-2, -0x1.0eec62p+0, -0x1.e962acp-6, 0x1.5c8154p+1, -0x1.f72cdcp-4}},
    {"Adam, amsgrad",
     false,
     kAdamAmsgrad,
     at::kFloat,
     {0x1.8f1e4ap-1, -0x1.3ba936p+0, -0x1.b84944p-6, 0x1.858eaep+1, -0x1.52f352p-2}},
    {"AdamW",
     true,
     kAdamW,
     at::kDouble,
     {0x1.7f7ad21d778aap-1, -0x1.32a902f55ea40p+0, -0x1.05325323cfcaap-5, 0x1.7a1e513e60e59p+1,
      -0x1.4a37d6d811becp-2}},
    {"AdamW, amsgrad, maximize",
     true,
     kAdamWMaximize,
     at::kDouble,
     {0x1.75f50baa2e74cp-1, -0x1.44ca6bd01ee12p+0, 0x1.27f274b4fd996p-5, 0x1.7b5a9bdd8380bp+1,
      -0x1.2cd4ba9ec5d87p-2}},
    {"Adam, L2",
     false,
     kAdam,
     at::kDouble,
     {0x1.a03e5ce6f7a52p-2, -0x1.0eec612f712c1p+0, -0x1.e962b9365a59ep-6, 0x1.5c81549e16cabp+1,
      -0x1.f72cdfae60e69p-4}},
    {"Adam, amsgrad",
     false,
     kAdamAmsgrad,
     at::kDouble,
     {0x1.8f1e49a18924fp-1, -0x1.3ba934464202ap+0, -0x1.b8494477d042bp-6, 0x1.858eb04a2412ap+1,
      -0x1.52f34f11be3e8p-2}},
    {"AdamW", true, kAdamW, at::kBFloat16, {0x1.8ap-1, -0x1.3cp+0, -0x1.08p-5, 0x1.84p+1, -0x1.52p-2}},
    {"AdamW, amsgrad, maximize",
     true,
     kAdamWMaximize,
     at::kBFloat16,
     {0x1.76p-1, -0x1.44p+0, 0x1.28p-5, 0x1.7cp+1, -0x1.2ep-2}},
    {"Adam, L2", false, kAdam, at::kBFloat16, {0x1.a4p-2, -0x1.0ap+0, -0x1.e8p-6, 0x1.54p+1, -0x1.fcp-4}},
    {"Adam, amsgrad",
     false,
     kAdamAmsgrad,
     at::kBFloat16,
     {0x1.8ep-1, -0x1.3ap+0, -0x1.bcp-6, 0x1.82p+1, -0x1.56p-2}},
    {"Adam, amsgrad",
     false,
     kAdamAmsgrad,
     at::kHalf,
     {0x1.8fcp-1, -0x1.3bcp+0, -0x1.b7cp-6, 0x1.854p+1, -0x1.53p-2}},
};

void expect_recorded(bool decoupled) {
  for (const Recorded& recorded : kRecorded) {
    if (recorded.decoupled != decoupled) continue;
    const at::Tensor p = start_parameter(recorded.dtype);
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (decoupled) {
      optimizer = std::make_unique<AdamW>(std::vector<at::Tensor>{p}, recorded.options);
    } else {
      optimizer = std::make_unique<Adam>(std::vector<at::Tensor>{p}, recorded.options);
    }
    take_steps(*optimizer, 0, 25);
    EXPECT_TRUE(is_near_recorded(p, recorded.parameter, recorded.options.lr()))
        << recorded.name << " in " << recorded.dtype << "\n"
        << p;
  }
}

// tests/parity/test_optimizers.py compares bit for bit with Python on the same CPU.
TEST(Adam, PE07_FollowsWhatPythonRecorded) { expect_recorded(false); }
TEST(AdamW, PE07_FollowsWhatPythonRecorded) { expect_recorded(true); }

TEST(AdamW, KeepsWeightDecayApartFromGradientWhenGivenAdamsOptions) {
  const at::Tensor p = start_parameter(at::kFloat);
  AdamW optimizer({p}, AdamOptions(0.5).weight_decay(0.5));
  p.mutable_grad() = at::zeros_like(p);
  optimizer.step();
  EXPECT_TRUE(at::equal(p, start_parameter(at::kFloat) * 0.75)) << p;
}

TEST(AdamW, DefaultsArePythons) {
  const AdamWOptions options;
  EXPECT_EQ(options.lr(), 1e-3);
  EXPECT_EQ(options.betas(), std::make_tuple(0.9, 0.999));
  EXPECT_EQ(options.eps(), 1e-8);
  EXPECT_EQ(options.weight_decay(), 1e-2);
  EXPECT_EQ(AdamOptions().weight_decay(), 0);
  EXPECT_FALSE(options.amsgrad() || options.maximize());
}

TEST(Adam, LeavesParametersWithoutGradientAlone) {
  const at::Tensor with = start_parameter(at::kFloat), without = start_parameter(at::kFloat);
  AdamW optimizer(std::vector<at::Tensor>{with, without});
  with.mutable_grad() = gradient(0, at::kFloat);
  optimizer.step();
  EXPECT_TRUE(at::equal(without, start_parameter(at::kFloat)));
  EXPECT_FALSE(at::equal(with, start_parameter(at::kFloat)));
  EXPECT_EQ(optimizer.state().size(), 1U) << "no memory for a parameter that is never trained";
}

TEST(Adam, NanAndInfGradientsPoisonTheirElementAlone) {
  const at::Tensor p = start_parameter(at::kFloat);
  Adam optimizer({p});
  p.mutable_grad() = at::tensor({NAN, INFINITY, 0.5F, 0.5F, 0.5F});
  optimizer.step();
  EXPECT_TRUE(at::equal(p.isnan(), torch::tensor({true, true, false, false, false}))) << p;
}

TEST(Adam, EmptyAndZeroDimensionalParameters) {
  const at::Tensor empty = at::zeros({0, 3}).set_requires_grad(true),
                   scalar = at::ones({}).set_requires_grad(true);
  AdamW optimizer(std::vector<at::Tensor>{empty, scalar}, AdamWOptions(0.1).weight_decay(0));
  empty.mutable_grad() = at::zeros_like(empty);
  scalar.mutable_grad() = at::ones({});
  optimizer.step();
  EXPECT_EQ(empty.sizes(), (at::IntArrayRef{0, 3}));
  EXPECT_FLOAT_EQ(scalar.item<float>(), 0.9F);
}

TEST(Adam, ComplexParameterMovesAsItsTwoRealParts) {
  const at::Tensor real = start_parameter(at::kFloat).detach().view({5, 1}).expand({5, 2}).contiguous();
  const at::Tensor complex = at::view_as_complex(real.clone()).set_requires_grad(true);
  const at::Tensor parts = real.clone().set_requires_grad(true);
  AdamW complex_optimizer({complex}, kAdamWMaximize), parts_optimizer({parts}, kAdamWMaximize);
  for (int64_t step = 0; step < 3; ++step) {
    parts.mutable_grad() = at::stack({gradient(step, at::kFloat), gradient(step + 1, at::kFloat)}, 1);
    complex.mutable_grad() = at::view_as_complex(parts.grad().clone());
    complex_optimizer.step();
    parts_optimizer.step();
  }
  EXPECT_TRUE(at::equal(at::view_as_real(complex.detach()), parts.detach()));
}

TEST(Adam, GroupsHaveTheirOwnOptionsAndFollowSetLr) {
  const at::Tensor slow = start_parameter(at::kFloat), still = start_parameter(at::kFloat);
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{slow},
                      std::make_unique<AdamOptions>(AdamWOptions(0.25).weight_decay(1)));
  groups.emplace_back(std::vector<at::Tensor>{still});
  AdamW optimizer(groups, AdamWOptions(0.5).weight_decay(1));
  optimizer.param_groups()[1].options().set_lr(0);
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.25);
  slow.mutable_grad() = at::zeros_like(slow);
  still.mutable_grad() = gradient(1, at::kFloat);
  optimizer.step();
  EXPECT_TRUE(at::equal(slow, start_parameter(at::kFloat) * 0.75));
  EXPECT_TRUE(at::equal(still, start_parameter(at::kFloat)));
}

TEST(Adam, ClosureRunsWithGradientsAndItsLossComesBack) {
  const at::Tensor p = start_parameter(at::kFloat);
  Adam optimizer({p});
  at::NoGradGuard no_grad;
  const at::Tensor loss = optimizer.step([&] {
    const at::Tensor value = p.square().sum();
    value.backward();
    return value;
  });
  EXPECT_FLOAT_EQ(loss.item<float>(), start_parameter(at::kFloat).square().sum().item<float>());
  EXPECT_FALSE(at::equal(p, start_parameter(at::kFloat)));
}

TEST(Adam, RefusesOptionsOutOfRangeByNameAndValue) {
  const at::Tensor p = start_parameter(at::kFloat);
  const auto error = [&](const AdamOptions& options) { return value_error([&] { Adam({p}, options); }); };
  EXPECT_THAT(error(AdamOptions(-0.5)), testing::HasSubstr("learning rate -0.5"));
  EXPECT_THAT(error(AdamOptions(NAN)), testing::HasSubstr("learning rate nan"));
  EXPECT_THAT(error(AdamOptions().eps(-1)), testing::HasSubstr("eps -1"));
  EXPECT_THAT(error(AdamOptions().betas({1.0, 0.9})), testing::HasSubstr("first beta 1 "));
  EXPECT_THAT(error(AdamOptions().betas({0.9, -0.1})), testing::HasSubstr("second beta -0.1"));
  EXPECT_THAT(error(AdamOptions().betas({0.9, 1.0})), testing::HasSubstr("second beta 1 "));
  EXPECT_THAT(error(AdamOptions().weight_decay(-3)), testing::HasSubstr("weight_decay -3"));
  EXPECT_THAT(value_error([] { Adam(std::vector<at::Tensor>{}); }), testing::HasSubstr("no parameters"));
  EXPECT_THAT(value_error([&] {
                std::vector<OptimizerParamGroup> groups;
                groups.emplace_back(std::vector<at::Tensor>{p}, std::make_unique<AdamOptions>(-7.0));
                Adam optimizer(groups);
              }),
              testing::HasSubstr("learning rate -7"));
}

TEST(Adam, RefusesAnotherOptimizersGroupOptions) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{start_parameter(at::kFloat)},
                      std::make_unique<torch::optim::AdamWOptions>(0.1));
  EXPECT_THROW(AdamW optimizer(groups), c10::TypeError);
}

TEST(Adam, TiedParameterIsUpdatedOnce) {
  const at::Tensor tied = start_parameter(at::kFloat), once = start_parameter(at::kFloat);
  Adam optimizer(std::vector<at::Tensor>{tied, tied, once, tied}, AdamOptions(0.5));
  ASSERT_EQ(optimizer.param_groups()[0].params().size(), 2U);
  EXPECT_TRUE(optimizer.param_groups()[0].params()[1].is_same(once)) << "the order is the first mentions'";
  take_steps(optimizer, 0, 3);
  EXPECT_TRUE(at::equal(tied, once)) << tied << once;
}

TEST(Adam, RefusesParameterInTwoGroups) {
  const at::Tensor p = start_parameter(at::kFloat);
  EXPECT_THAT(value_error([&] {
                Adam optimizer(std::vector<OptimizerParamGroup>{std::vector<at::Tensor>{p, p},
                                                                std::vector<at::Tensor>{p}});
              }),
              testing::AllOf(testing::HasSubstr("shape [5]"), testing::HasSubstr("groups 0 and 1")));
}

TEST(Adam, AGroupAddedLaterKeepsItsOptions) {
  const at::Tensor first = start_parameter(at::kFloat), later = start_parameter(at::kFloat);
  Adam optimizer({first}, AdamOptions(0.5));
  optimizer.add_param_group({{later}, std::make_unique<AdamOptions>(0.25)});
  optimizer.add_param_group(OptimizerParamGroup({start_parameter(at::kFloat)}));
  EXPECT_EQ(optimizer.param_groups()[1].options().get_lr(), 0.25);
  EXPECT_EQ(optimizer.param_groups()[2].options().get_lr(), 0.5);
  EXPECT_THAT(value_error([&] {
                optimizer.add_param_group({{later}, std::make_unique<AdamOptions>(-1)});
              }),
              testing::HasSubstr("learning rate -1"));
  EXPECT_EQ(optimizer.param_groups().size(), 3U);
}

TEST(Adam, GroupsAddedLaterAreLookedAtToo) {
  const at::Tensor first = start_parameter(at::kFloat), tied = start_parameter(at::kFloat);
  AdamW optimizer({first}, AdamWOptions(0.1));
  optimizer.add_param_group(std::vector<at::Tensor>{tied, tied});
  take_steps(optimizer, 0, 2);
  EXPECT_TRUE(at::equal(tied, first));
  Adam wrong({first});
  const auto again = [&] { wrong.add_param_group(std::vector<at::Tensor>{first}); };
  EXPECT_THAT(value_error(again), testing::HasSubstr("groups 0 and 1"));
  EXPECT_THAT(value_error([&] { wrong.add_param_group(std::vector<at::Tensor>{at::Tensor()}); }),
              testing::HasSubstr("undefined tensor"));
  EXPECT_EQ(wrong.param_groups().size(), 1U);
  // libtorch's own function, which calls nothing in the optimizer.
  static_cast<torch::optim::Optimizer&>(wrong).add_param_group(std::vector<at::Tensor>{first});
  EXPECT_THAT(value_error([&] { wrong.step(); }), testing::HasSubstr("groups 0 and 1"));
}

TEST(Adam, RefusesAFileThatIsNotItsOwn) {
  const at::Tensor p = start_parameter(at::kFloat), wide = at::ones({2, 5}).set_requires_grad(true);
  Adam optimizer({p}, AdamOptions(0.1)), other_net({wide});
  torch::optim::SGD sgd({p}, 0.3);
  EXPECT_THAT(value_error([&] { save_and_load(sgd, optimizer); }),
              testing::HasSubstr("Adam::load: the file is of SGD"));
  wide.mutable_grad() = at::ones({2, 5});
  other_net.step();
  EXPECT_THAT(value_error([&] { save_and_load(other_net, optimizer); }),
              testing::HasSubstr("of shape [2, 5] for parameter 0 of group 0, whose shape is [5]"));
  Adam impossible({p});
  impossible.param_groups()[0].options().set_lr(-1);
  EXPECT_THAT(value_error([&] { save_and_load(impossible, optimizer); }),
              testing::HasSubstr("learning rate -1"));
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.1);
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(Adam, MomentsThatFitStayTheSameTensors) {
  const at::Tensor rows = at::ones({4, 3}).set_requires_grad(true),
                   columns = at::ones({3, 4}).t().set_requires_grad(true),
                   gaps = at::ones({4, 6}).slice(1, 0, 3).set_requires_grad(true);
  Adam optimizer({rows, columns, gaps});
  const auto moment_of = [&](const at::Tensor& p) {
    return dynamic_cast<const AdamParamState&>(*optimizer.state().at(p.unsafeGetTensorImpl())).exp_avg();
  };
  take_noisy_steps(optimizer, 0, 1);
  for (const at::Tensor& p : {rows, columns, gaps}) {
    const at::Tensor before = moment_of(p);
    take_noisy_steps(optimizer, 1, 2);
    EXPECT_TRUE(moment_of(p).is_same(before)) << p.strides();
  }
}

TEST(Adam, RefusesSparseGradientsBeforeAnyParameterMoves) {
  const at::Tensor dense = start_parameter(at::kFloat), sparse = start_parameter(at::kFloat);
  Adam optimizer(std::vector<at::Tensor>{dense, sparse});
  dense.mutable_grad() = gradient(0, at::kFloat);
  sparse.mutable_grad() = gradient(0, at::kFloat).to_sparse();
  EXPECT_THROW(optimizer.step(), c10::Error);
  EXPECT_TRUE(at::equal(dense, start_parameter(at::kFloat)));
  EXPECT_TRUE(optimizer.state().empty());
}

TEST(Adam, SavedInTheMiddleContinuesBitForBit) {
  const at::Tensor p = start_parameter(at::kFloat);
  AdamW straight({p}, kAdamWMaximize);
  take_steps(straight, 0, 5);
  std::stringstream file;
  torch::save(straight, file);
  const at::Tensor q = p.detach().clone().set_requires_grad(true);
  AdamW resumed({q}, AdamWOptions(123));
  torch::load(resumed, file);
  const auto& options = static_cast<const AdamOptions&>(resumed.param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.01);
  EXPECT_TRUE(options.amsgrad() && options.maximize());
  take_steps(straight, 5, 9);
  take_steps(resumed, 5, 9);
  EXPECT_TRUE(at::equal(p, q));
}

TEST(Adam, TakesOverWhatLibtorchsAdamWSaved) {
  const at::Tensor theirs = start_parameter(at::kFloat), ours = start_parameter(at::kFloat);
  torch::optim::AdamW stock({theirs}, torch::optim::AdamWOptions(0.01).weight_decay(0.5));
  take_steps(stock, 0, 5);
  std::stringstream file;
  torch::save(stock, file);
  {
    at::NoGradGuard no_grad;
    ours.copy_(theirs);
  }
  AdamW optimizer({ours});
  torch::load(optimizer, file);
  take_steps(stock, 5, 9);
  take_steps(optimizer, 5, 9);
  EXPECT_TRUE(at::allclose(ours, theirs, 1e-6, 1e-8)) << ours << theirs;
}

}  // namespace
}  // namespace mantissa::adam_test
