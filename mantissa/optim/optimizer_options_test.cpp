// How the optimizers treat the options of their groups: they read them from files, and check them before anything changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/optim/adam.h"
#include "mantissa/optim/adamw.h"
#include "mantissa/optim/fused_adagrad.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/optim/muon.h"
#include "mantissa/optim/optimizer_internal.h"
#include "mantissa/optim/optimizers_8bit.h"
#include "mantissa/optim/sgd.h"
#include "mantissa/optim/test_support_internal.h"

namespace mantissa::optimizer_options_test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using torch::optim::OptimizerParamGroup;
using torch::optim::RMSpropOptions;
using Groups = std::vector<OptimizerParamGroup>;

at::Tensor matrix() { return noise(-1, {24, 40}, at::kFloat).set_requires_grad(true); }

template <typename Options>
OptimizerParamGroup group(const at::Tensor& parameter, const Options& options) {
  return {{parameter}, std::make_unique<Options>(options)};
}

/// Checks that an optimizer with `others` goes on as one with `options` does, once it has loaded its file.
template <typename Optimizer, typename Options>
void expect_read_from_a_file(const Options& options, const Options& others) {
  const at::Tensor p = matrix();
  Optimizer straight({p}, options);
  take_noisy_steps(straight, 0, 2);
  const at::Tensor q = twin(p);
  Optimizer resumed({q}, others);
  save_and_load(straight, resumed);
  take_noisy_steps(straight, 2, 5);
  take_noisy_steps(resumed, 2, 5);
  EXPECT_TRUE(at::equal(q, p)) << typeid(Optimizer).name();
}

TEST(OptimizerOptions, EachOneComesBackFromAFile) {
  const auto adam = AdamOptions(0.02).betas({0.5, 0.75}).eps(0.1).weight_decay(0.3).amsgrad(true);
  expect_read_from_a_file<Adam>(adam, AdamOptions().amsgrad(true));
  expect_read_from_a_file<FusedAdam>(AdamOptions(adam).maximize(true), AdamOptions().amsgrad(true));
  expect_read_from_a_file<SGD>(
      SGDOptions(0.02).momentum(0.5).dampening(0.25).weight_decay(0.3).maximize(true),
      SGDOptions().momentum(0.9));
  expect_read_from_a_file<FusedSGD>(SGDOptions(0.02).momentum(0.5).nesterov(true), SGDOptions());
  expect_read_from_a_file<FusedAdagrad>(
      AdagradOptions(0.02).lr_decay(0.2).eps(0.1).weight_decay(0.3).maximize(true), AdagradOptions());
  expect_read_from_a_file<Lion8bit>(LionOptions(0.02).betas({0.5, 0.75}).weight_decay(0.3).maximize(true),
                                    LionOptions());
  expect_read_from_a_file<RMSprop8bit>(RMSpropOptions(0.02).alpha(0.5).eps(0.1).weight_decay(0.3),
                                       RMSpropOptions());
  const auto muon = MuonOptions(0.02).weight_decay(0.3).eps(100);
  expect_read_from_a_file<Muon>(MuonOptions(muon)
                                    .momentum(0.5)
                                    .nesterov(false)
                                    .ns_coefficients({2, -1.5, 0.5})
                                    .ns_steps(3)
                                    .adjust_lr_fn("match_rms_adamw"),
                                MuonOptions());
  expect_read_from_a_file<Muon>(MuonOptions(muon).use_muon(false).betas({0.5, 0.75}),
                                MuonOptions().use_muon(false));
}

// From version 2.13 on, libtorch replaces the options of groups by the defaults.
TEST(OptimizerOptions, TheLastGroupsGetThoseThatTheyBrought) {
  const at::Tensor p = matrix();
  Groups groups;
  for (int i = 0; i < 4; ++i) groups.push_back(group(p, SGDOptions(0.5)));
  keep_options({group(p, SGDOptions(0.125)), OptimizerParamGroup({p}), group(p, SGDOptions(0.25))}, groups);
  std::vector<double> rates;
  for (const auto& each : groups) rates.push_back(each.options().get_lr());
  EXPECT_EQ(rates, (std::vector<double>{0.5, 0.125, 0.5, 0.25}));
}

TEST(OptimizerOptions, DefaultsAreCheckedAlsoIfNoGroupTakesThem) {
  const at::Tensor p = matrix();
  EXPECT_THAT(error_of([&] { Adam({group(p, AdamOptions())}, AdamOptions(-1)); }),
              HasSubstr("Adam: learning rate -1"));
  EXPECT_THAT(error_of([&] { Adam8bit({group(p, AdamOptions())}, AdamOptions(-1)); }),
              HasSubstr("Adam8bit: learning rate -1"));
  EXPECT_THAT(error_of([&] { Adam8bit({group(p, AdamOptions())}, AdamOptions().amsgrad(true)); }),
              HasSubstr("Adam8bit: amsgrad would need a third state"));
  EXPECT_THAT(error_of([&] { Adam8bit({group(p, AdamOptions().amsgrad(true))}, AdamOptions()); }),
              HasSubstr("Adam8bit: amsgrad would need a third state"));
}

/// Gives the second group `wrong` after construction, and expects that the step then changes nothing. Returns the error.
template <typename Optimizer, typename Options>
std::string refused_in_a_step(const Options& wrong) {
  const at::Tensor first = matrix(), second = matrix();
  Optimizer optimizer(Groups{OptimizerParamGroup({first}), OptimizerParamGroup({second})});
  optimizer.param_groups()[1].set_options(std::make_unique<Options>(wrong));
  const std::string error = error_of([&] { take_noisy_steps(optimizer, 0, 1); });
  EXPECT_TRUE(at::equal(first, matrix()));
  EXPECT_TRUE(optimizer.state().empty());
  return error;
}

TEST(OptimizerOptions, ThoseThatChangedAreRefusedBeforeAnythingChanges) {
  const auto of_another = [](const std::string& name) {
    return StartsWith(name + ": a parameter group has another optimizer's options");
  };
  const torch::optim::LBFGSOptions lbfgs;
  EXPECT_THAT(refused_in_a_step<Adam>(lbfgs), of_another("Adam"));
  EXPECT_THAT(refused_in_a_step<SGD>(lbfgs), of_another("SGD"));
  EXPECT_THAT(refused_in_a_step<FusedAdam>(lbfgs), of_another("FusedAdam"));
  EXPECT_THAT(refused_in_a_step<FusedAdamW>(lbfgs), of_another("FusedAdamW"));
  EXPECT_THAT(refused_in_a_step<FusedSGD>(lbfgs), of_another("FusedSGD"));
  EXPECT_THAT(refused_in_a_step<FusedAdagrad>(lbfgs), of_another("FusedAdagrad"));
  EXPECT_THAT(refused_in_a_step<Lion8bit>(lbfgs), of_another("Lion8bit"));
  EXPECT_THAT(refused_in_a_step<Lion8bit>(LionOptions(-1)), HasSubstr("Lion8bit: learning rate -1"));
  EXPECT_THAT(refused_in_a_step<Muon>(MuonOptions().momentum(2)), HasSubstr("Muon: momentum 2 is invalid"));
}

TEST(OptimizerOptions, ThoseOfMuonAreFiniteNumbers) {
  const auto error = [](const MuonOptions& options) { return error_of([&] { Muon({matrix()}, options); }); };
  EXPECT_EQ(error(MuonOptions().ns_coefficients({1e308, 1e308, 0})), "no error");
  const MuonOptions::ns_coefficients_t wrong[] = {{NAN, 0, 0}, {0, INFINITY, 0}, {0, 0, -INFINITY}};
  for (const auto& coefficients : wrong)
    EXPECT_THAT(error(MuonOptions().ns_coefficients(coefficients)),
                HasSubstr(" is invalid; it must be finite"));
}

}  // namespace
}  // namespace mantissa::optimizer_options_test
