// Properties of every fused optimizer, with states of 32 and of 8 bits. optimizer_4bit_test.cpp has those of 4 bits,
// and muon_test.cpp those of matrices.
#include "mantissa/optim/fused_optimizer.h"

#include "mantissa/core/device.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/optim/fused_test_support_internal.h"
#include "mantissa/optim/optimizers_8bit.h"
#include "mantissa/optim/test_support_internal.h"

namespace mantissa::fused_optimizer_test {
namespace {

using namespace fused_test;

INSTANTIATE_TEST_SUITE_P(Kinds, Fused, testing::ValuesIn(kKinds),
                         [](const auto& info) { return info.param.name; });

TEST_P(Fused, DroppedStepChangesNothingWhateverTheFlagAddsUpTo) {
  for (at::ScalarType dtype : GetParam().dtypes) {
    for (const FusedOptions& options : {FusedOptions(), kRounding}) {
      for (float flag : {1.0F, 2.0F}) {
        const at::Tensor p = large_parameter(dtype);
        const auto optimizer = make({p}, options);
        take_noisy_steps(*optimizer, 0, 2);
        const auto before = everything(*optimizer, p);
        p.mutable_grad().fill_(INFINITY);
        optimizer->grad_scale = at::full({}, 8.0);
        optimizer->found_inf = at::full({}, flag);
        optimizer->step();
        expect_equal(everything(*optimizer, p), before);
        EXPECT_EQ(optimizer->found_inf.item<float>(), flag) << "the scaler's flag stays the scaler's";
      }
    }
  }
}

TEST_P(Fused, FirstStepsThatAreDroppedLeaveNoTrace) {
  for (at::ScalarType dtype : GetParam().dtypes) {
    const at::Tensor straight = large_parameter(dtype), p = large_parameter(dtype);
    const auto want = make({straight}), optimizer = make({p});
    for (int i = 0; i < 2; ++i) {
      p.mutable_grad() = at::full_like(p, NAN).detach();
      optimizer->found_inf = at::ones({});
      optimizer->step();
    }
    want->found_inf = optimizer->found_inf = at::zeros({});
    take_noisy_steps(*want, 0, 3);
    take_noisy_steps(*optimizer, 0, 3);
    expect_equal(everything(*optimizer, p), everything(*want, straight));
    want->found_inf.reset();  // as without a scaler
    optimizer->found_inf.reset();
    take_noisy_steps(*want, 3, 5);
    take_noisy_steps(*optimizer, 3, 5);
    expect_equal(everything(*optimizer, p), everything(*want, straight));
  }
}

TEST_P(Fused, SavedAfterADroppedFirstStepStartsAfresh) {
  const at::Tensor straight = large_parameter(at::kFloat), dropped = large_parameter(at::kFloat);
  const auto want = make({straight}), first = make({dropped});
  dropped.mutable_grad() = at::ones_like(dropped).detach();
  first->found_inf = at::ones({});
  first->step();
  const at::Tensor p = twin(dropped);
  const auto optimizer = make({p});
  save_and_load(*first, *optimizer);
  take_noisy_steps(*want, 0, 3);
  take_noisy_steps(*optimizer, 0, 3);
  expect_equal(everything(*optimizer, p), everything(*want, straight));
}

TEST_P(Fused, DividesByTheScaleAndLeavesUnscaledGradients) {
  for (at::ScalarType dtype : GetParam().dtypes) {
    for (const FusedOptions& options : {FusedOptions(), kRounding}) {
      const at::Tensor plain = large_parameter(dtype), scaled = large_parameter(dtype);
      const auto want = make({plain}, options), optimizer = make({scaled}, options);
      optimizer->grad_scale = at::full({}, 1024.0);
      optimizer->found_inf = at::zeros({});
      for (int64_t step = 0; step < 3; ++step) {
        plain.mutable_grad() = noise(step, plain.sizes(), dtype);
        scaled.mutable_grad() = noise(step, plain.sizes(), dtype) * 1024;
        want->step();
        optimizer->step();
        EXPECT_TRUE(at::equal(scaled.grad(), plain.grad())) << dtype;
      }
      EXPECT_TRUE(at::equal(scaled, plain)) << dtype;
    }
  }
}

TEST_P(Fused, GradientsAndStatesFollowTheParametersLayout) {
  for (at::ScalarType dtype : GetParam().dtypes) {
    const at::Tensor rows = noise(-1, {31, 33}, dtype).set_requires_grad(true);
    const at::Tensor columns =
        rows.detach().t().clone(at::MemoryFormat::Contiguous).t().set_requires_grad(true);
    ASSERT_NE(rows.strides(), columns.strides());
    const auto want = make({rows}), optimizer = make({columns});
    want->grad_scale = optimizer->grad_scale = at::full({}, 2.0);
    for (int64_t step = 0; step < 3; ++step) {
      rows.mutable_grad() = noise(step, {31, 33}, dtype);
      columns.mutable_grad() = noise(step, {31, 33}, dtype);
      want->step();
      optimizer->step();
      EXPECT_TRUE(at::equal(columns.grad(), noise(step, {31, 33}, dtype) / 2));
    }
    EXPECT_TRUE(at::allclose(columns.to(at::kDouble), rows.to(at::kDouble), 1e-6,
                             dtype == at::kHalf       ? 1e-3
                             : dtype == at::kBFloat16 ? 1e-2
                                                      : 1e-6))
        << dtype;
    // A state that was saved for one layout works with the other.
    const at::Tensor taken = twin(rows),
                     moved =
                         rows.detach().t().clone(at::MemoryFormat::Contiguous).t().set_requires_grad(true);
    const auto same = make({taken}), other = make({moved});
    save_and_load(*want, *same);
    save_and_load(*want, *other);
    take_noisy_steps(*same, 3, 4);
    take_noisy_steps(*other, 3, 4);
    EXPECT_TRUE(at::allclose(moved.to(at::kDouble), taken.to(at::kDouble), 1e-6,
                             dtype == at::kHalf       ? 1e-3
                             : dtype == at::kBFloat16 ? 1e-2
                                                      : 1e-6))
        << dtype;
  }
}

TEST_P(Fused, RefusesWhatKernelsCannotTakeBeforeAnyParameterMoves) {
  const at::Tensor fine = large_parameter(at::kFloat), odd = large_parameter(at::kFloat);
  const at::Tensor complex = at::zeros({2}, at::kComplexFloat).set_requires_grad(true);
  const at::Tensor gaps = at::zeros({4, 4}).slice(1, 0, 2).detach().set_requires_grad(true);
  const auto optimizer = make({fine, odd, complex, gaps});
  fine.mutable_grad() = at::ones_like(fine).detach();
  odd.mutable_grad() = at::ones_like(odd).detach().to_sparse();
  EXPECT_THROW(optimizer->step(), c10::Error);
  odd.mutable_grad().reset();
  complex.mutable_grad() = at::ones_like(complex).detach();
  EXPECT_THROW(optimizer->step(), c10::TypeError);
  complex.mutable_grad().reset();
  gaps.mutable_grad() = at::ones({4, 2});
  EXPECT_THAT(value_error([&] { optimizer->step(); }), testing::HasSubstr("has gaps in memory"));
  EXPECT_TRUE(at::equal(fine, large_parameter(at::kFloat)));
  EXPECT_TRUE(optimizer->state().empty());
}

TEST_P(Fused, ParametersWithoutGradientJoinLater) {
  const at::Tensor early = large_parameter(at::kFloat), late = large_parameter(at::kFloat),
                   alone = large_parameter(at::kFloat), never = large_parameter(at::kFloat);
  const auto both = make({early, late, never}), one = make({alone});
  early.mutable_grad() = noise(9, early.sizes(), at::kFloat);
  both->step();
  EXPECT_TRUE(at::equal(late, large_parameter(at::kFloat)));
  for (int64_t step = 0; step < 3; ++step) {
    early.mutable_grad() = late.mutable_grad() = alone.mutable_grad() = noise(step, late.sizes(), at::kFloat);
    both->step();
    one->step();
  }
  EXPECT_TRUE(at::equal(late, alone));
  EXPECT_FALSE(at::equal(early, late));
  EXPECT_TRUE(at::equal(never, large_parameter(at::kFloat)));
}

TEST_P(Fused, EmptyTensorsEmptyGroupsAndSeveralDtypes) {
  const at::Tensor empty = at::zeros({0, 3}).set_requires_grad(true),
                   scalar = at::ones({}).set_requires_grad(true),
                   half = at::ones({5}, at::kHalf).set_requires_grad(true),
                   brain = at::ones({5}, at::kBFloat16).set_requires_grad(true),
                   fine = at::ones({5}, GetParam().dtypes[1]).set_requires_grad(true);
  for (const FusedOptions& options : {FusedOptions(), kRounding}) {
    const auto optimizer = GetParam().make(
        Groups{OptimizerParamGroup(std::vector<at::Tensor>{}),
               OptimizerParamGroup(std::vector<at::Tensor>{empty, half, scalar, brain, fine})},
        options);
    take_noisy_steps(*optimizer, 0, 2);
    for (const at::Tensor& p : {scalar, half, brain, fine}) EXPECT_TRUE(p.ne(1).any().item<bool>()) << p;
    for (const at::Tensor& p : {scalar, half, brain, fine}) EXPECT_TRUE(p.isfinite().all().item<bool>()) << p;
    optimizer->zero_grad();
    optimizer->step();
  }
}

TEST_P(Fused, TiedWeightIsUpdatedOnceAndTwoGroupsAreRefused) {
  const at::Tensor tied = large_parameter(at::kFloat), once = large_parameter(at::kFloat);
  const auto optimizer = make({tied, tied, once});
  take_noisy_steps(*optimizer, 0, 2);
  EXPECT_TRUE(at::equal(tied, once));
  EXPECT_THAT(value_error([&] {
                GetParam().make(Groups{OptimizerParamGroup({tied}), OptimizerParamGroup({tied})}, {});
              }),
              testing::HasSubstr("groups 0 and 1"));
  EXPECT_THAT(value_error([&] { make({}); }), testing::HasSubstr("no parameters"));
}

TEST_P(Fused, AGroupAddedLaterKeepsItsOptions) {
  const auto optimizer = make({large_parameter(at::kFloat)});
  auto options = optimizer->param_groups()[0].options().clone();
  options->set_lr(0.375);
  optimizer->add_param_group({{large_parameter(at::kFloat)}, std::move(options)});
  EXPECT_EQ(optimizer->param_groups()[1].options().get_lr(), 0.375);
  EXPECT_NE(optimizer->param_groups()[0].options().get_lr(), 0.375);
}

TEST_P(Fused, GroupsAddedLaterAreLookedAtToo) {
  const at::Tensor first = large_parameter(at::kFloat), tied = twin(first), shared = twin(first);
  const auto optimizer = make({first});
  optimizer->add_param_group(OptimizerParamGroup({tied, tied}));
  take_noisy_steps(*optimizer, 0, 2);
  EXPECT_TRUE(at::equal(tied, first));
  const auto wrong = make({first});
  wrong->add_param_group(OptimizerParamGroup({shared, first}));
  const at::Tensor before = first.detach().clone();
  EXPECT_THAT(value_error([&] { take_noisy_steps(*wrong, 2, 3); }),
              testing::HasSubstr("is in parameter groups 0 and 1; keep it in one of them"));
  EXPECT_TRUE(at::equal(first, before));
}

/// Returns the error of `load`, and expects it to leave `optimizer` unchanged.
template <typename Load>
std::string refusal(const FusedOptimizer& optimizer, const at::Tensor& parameter, const Load& load) {
  const auto before = everything(optimizer, parameter);
  const double lr = optimizer.param_groups()[0].options().get_lr();
  const std::string error = value_error(load);
  expect_equal(everything(optimizer, parameter), before);
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), lr);
  return error;
}

TEST_P(Fused, RefusesAnotherOptimizersFileBeforeAnythingChanges) {
  const at::Tensor p = large_parameter(at::kFloat), other = large_parameter(at::kFloat);
  const auto optimizer = make({p});
  take_noisy_steps(*optimizer, 0, 2);
  const auto& options = optimizer->param_groups()[0].options();
  // Another optimizer with the same options has other states.
  const bool has_8_bits = dynamic_cast<LowBitOptimizer*>(optimizer.get()) != nullptr;
  const auto expect_refused = [&](auto&& another, const std::string& whose, bool has_its_options) {
    if (has_its_options && !has_8_bits) return;
    take_noisy_steps(another, 0, 1);
    EXPECT_THAT(refusal(*optimizer, p, [&] { save_and_load(another, *optimizer); }),
                testing::HasSubstr(has_its_options
                                       ? "which is not part of "
                                       : "the file is of " + whose + ", whose options and state are not "));
  };
  const bool is_sgd = dynamic_cast<const SGDOptions*>(&options) != nullptr;
  expect_refused(torch::optim::SGD({other}, torch::optim::SGDOptions(0.3).momentum(0.9)), "SGD", is_sgd);
  expect_refused(SGD({other}, SGDOptions(0.3).momentum(0.9)), "SGD", is_sgd);
  const bool has_betas =
      dynamic_cast<const AdamOptions*>(&options) || dynamic_cast<const LionOptions*>(&options);
  expect_refused(torch::optim::AdamW({other}, 0.3), "Adam or AdamW", has_betas);
  expect_refused(FusedAdamW({other}, AdamWOptions(0.3)), "Adam or AdamW", has_betas);
  if (dynamic_cast<const AdagradOptions*>(&options) == nullptr)
    expect_refused(torch::optim::Adagrad({other}, 0.3), "Adagrad", false);
  expect_refused(torch::optim::RMSprop({other}, 0.3), "RMSprop",
                 dynamic_cast<const torch::optim::RMSpropOptions*>(&options) != nullptr);

  torch::serialize::OutputArchive saved;
  saved.write("weight", other);
  std::stringstream file;
  saved.save_to(file);
  torch::serialize::InputArchive archive;
  archive.load_from(file);
  EXPECT_THAT(refusal(*optimizer, p, [&] { optimizer->load(archive); }),
              testing::HasSubstr("the file has no 'state', so it does not hold an optimizer"));
}

TEST_P(Fused, RefusesAnotherNetsFileBeforeAnythingChanges) {
  const at::Tensor p = large_parameter(at::kFloat), q = large_parameter(at::kFloat);
  const auto optimizer = make({p, q});
  take_noisy_steps(*optimizer, 0, 2);
  const auto load = [&](const Groups& groups) {
    const auto another = GetParam().make(groups, {});
    another->param_groups()[0].options().set_lr(123);
    take_noisy_steps(*another, 0, 1);
    return refusal(*optimizer, p, [&] { save_and_load(*another, *optimizer); });
  };
  const at::Tensor same = large_parameter(at::kFloat), wide = at::ones({3, 4}).set_requires_grad(true);
  if (!optimizer->state().empty()) {  // SGD without momentum has no state
    EXPECT_THAT(load({OptimizerParamGroup({same, wide})}),
                testing::ContainsRegex("of shape \\[3, 4\\] for parameter 1 of group 0, whose shape is "
                                       "\\[3001\\]; load it into an optimizer of the net"));
  }
  EXPECT_THAT(load({OptimizerParamGroup({same})}),
              testing::HasSubstr("the file has 1 parameters in group 0, and the optimizer has 2"));
  EXPECT_THAT(load({OptimizerParamGroup({same}), OptimizerParamGroup({wide})}),
              testing::HasSubstr("the file has 2 parameter groups, and the optimizer has 1"));
}

TEST_P(Fused, GroupsFollowTheirOwnLearningRate) {
  const at::Tensor still = large_parameter(at::kFloat), moving = large_parameter(at::kFloat);
  const auto optimizer =
      GetParam().make(Groups{OptimizerParamGroup({still}), OptimizerParamGroup({moving})}, {});
  EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.01);
  optimizer->param_groups()[0].options().set_lr(0);
  take_noisy_steps(*optimizer, 0, 2);
  EXPECT_TRUE(at::equal(still, large_parameter(at::kFloat)));
  EXPECT_FALSE(at::equal(moving, still));
}

TEST_P(Fused, RefusesAnotherOptimizersGroupOptions) {
  Groups groups;
  groups.emplace_back(std::vector<at::Tensor>{large_parameter(at::kFloat)},
                      std::make_unique<torch::optim::LBFGSOptions>());
  EXPECT_THROW(GetParam().make(groups, {}), c10::TypeError);
}

TEST_P(Fused, ClosureRunsWithGradientsAndItsLossComesBack) {
  const at::Tensor p = large_parameter(at::kFloat);
  const auto optimizer = make({p});
  const at::NoGradGuard no_grad;
  const at::Tensor loss = optimizer->step([&] {
    const at::Tensor value = p.square().sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<float>(), large_parameter(at::kFloat).square().sum().item<float>());
  EXPECT_FALSE(at::equal(p, large_parameter(at::kFloat)));
}

TEST_P(Fused, SavedInTheMiddleContinuesBitForBit) {
  for (at::ScalarType dtype : GetParam().dtypes) {
    for (const FusedOptions& options : {FusedOptions(), kRounding}) {
      const at::Tensor p = large_parameter(dtype);
      const auto straight = make({p}, options);
      take_noisy_steps(*straight, 0, 3);
      const at::Tensor q = twin(p);
      const auto resumed = make({q}, {.stochastic_rounding = options.stochastic_rounding, .seed = 99});
      resumed->param_groups()[0].options().set_lr(123);
      save_and_load(*straight, *resumed);
      take_noisy_steps(*straight, 3, 6);
      take_noisy_steps(*resumed, 3, 6);
      expect_equal(everything(*resumed, q), everything(*straight, p));
    }
  }
}

TEST_P(Fused, TakesGradientsOnCudaAndTheCpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const at::Tensor here = large_parameter(at::kFloat), there = here.detach().cuda().set_requires_grad(true);
  const auto optimizer = make({here, there});
  optimizer->grad_scale = at::full({}, 4.0);
  optimizer->found_inf = at::zeros({});
  take_noisy_steps(*optimizer, 0, 3);
  EXPECT_TRUE(at::allclose(there.cpu(), here, 1e-5, 1e-6));
  const at::Tensor before = there.detach().clone();
  optimizer->found_inf = at::full({}, 2.0);
  take_noisy_steps(*optimizer, 3, 4);
  EXPECT_TRUE(at::equal(there, before));
}

// libtorch takes an option of a group that equals the class's default for one that was not given.
TEST(FusedOptimizer, AGroupKeepsItsOptions) {
  Groups groups;
  groups.emplace_back(std::vector<at::Tensor>{at::ones({1}).set_requires_grad(true)});
  groups.emplace_back(std::vector<at::Tensor>{at::ones({1}).set_requires_grad(true)},
                      std::make_unique<SGDOptions>(SGDOptions().lr()));
  const FusedSGD optimizer(groups, SGDOptions(0.5).momentum(0.9));
  const auto options = [&](size_t group) {
    return dynamic_cast<const SGDOptions&>(optimizer.param_groups()[group].options());
  };
  EXPECT_EQ(options(0).lr(), 0.5);
  EXPECT_EQ(options(0).momentum(), 0.9);
  EXPECT_EQ(options(1).lr(), SGDOptions().lr());
  EXPECT_EQ(options(1).momentum(), 0);

  Groups adams;
  adams.emplace_back(std::vector<at::Tensor>{at::ones({1}).set_requires_grad(true)},
                     std::make_unique<AdamWOptions>());
  const FusedAdamW adam(adams, AdamWOptions(AdamOptions(0.5).weight_decay(0.25)));
  EXPECT_EQ(adam.param_groups()[0].options().get_lr(), AdamWOptions().lr());
}

}  // namespace
}  // namespace mantissa::fused_optimizer_test
