#include "mantissa/optim/registry.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/optim/adamw.h"
#include "mantissa/optim/fused_adagrad.h"
#include "mantissa/optim/muon.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/optim/optimizers_8bit.h"

namespace mantissa::registry_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class OptimizerRegistry : public testing::TestWithParam<OptimizerEntry> {};

TEST_P(OptimizerRegistry, EveryOneTakesAStep) {
  const at::Tensor weight = at::ones({4}).set_requires_grad(true);
  const auto optimizer = make_optimizer(GetParam().name, {weight}, {.lr = 0.5});
  EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.5);
  weight.mutable_grad() = at::ones({4});
  optimizer->step();
  EXPECT_TRUE(weight.lt(1).all().item<bool>());
}

// The rows must agree with the optimizers, so that no other code has to check.
TEST_P(OptimizerRegistry, TheRowIsTrue) {
  const auto& row = GetParam();
  const auto optimizer = make_optimizer(row.name, {at::ones({4}).set_requires_grad(true)});
  const StateDict state = optimizer_state(*optimizer);
  const StateReader group = StateReader(state).at("param_groups").at(0);
  EXPECT_EQ(group.at("lr").to_double(), row.defaults.lr);
  EXPECT_EQ(group.at("weight_decay").to_double(), row.defaults.weight_decay);
  // libtorch's options have a momentum and an lr_decay, which must be 0 in these.
  const bool is_rmsprop = row.takes("alpha"), is_adagrad8bit = row.name == "adagrad8bit";
  EXPECT_EQ(group.find("momentum").has_value(), row.takes("momentum") || is_rmsprop);
  EXPECT_EQ(group.find("alpha").has_value(), row.takes("alpha"));
  EXPECT_EQ(group.find("betas").has_value(), row.takes("beta1") && row.takes("beta2"));
  EXPECT_EQ(group.find("eps").has_value(), row.takes("eps"));
  EXPECT_EQ(group.find("lr_decay").has_value(), row.takes("lr_decay") || is_adagrad8bit);
  if (row.takes("eps")) {
    EXPECT_EQ(group.at("eps").to_double(), row.defaults.eps);
  }
  const auto* const low_bit = dynamic_cast<LowBitOptimizer*>(optimizer.get());
  EXPECT_EQ(row.takes("min_8bit_size"), low_bit && low_bit->optim_bits(torch::zeros({4096})) < 32);
  EXPECT_EQ(row.squares_gradients, row.takes("eps") && !low_bit);
  EXPECT_FALSE(StateReader(state).find("stochastic_rounding_seed"));
}

TEST_P(OptimizerRegistry, ARowSaysWhetherAMomentumOf0IsRefused) {
  const auto& row = GetParam();
  if (!row.takes("momentum")) {
    EXPECT_EQ(row.for_momentum_0, "");
    return;
  }
  const auto make = [](const std::string& name) {
    return make_optimizer(name, {at::ones({4}).set_requires_grad(true)}, {.momentum = 0.0});
  };
  if (row.for_momentum_0.empty()) {
    EXPECT_NE(make(row.name), nullptr);
  } else {
    EXPECT_THROW(make(row.name), c10::ValueError);
    EXPECT_NE(make(row.for_momentum_0), nullptr);
  }
}

TEST_P(OptimizerRegistry, WhatItDoesNotTakeIsRefusedByName) {
  const auto& row = GetParam();
  const auto make = [&](const OptimizerSettings& settings) {
    return error_of([&] { make_optimizer(row.name, {at::ones({4}).set_requires_grad(true)}, settings); });
  };
  const OptimizerSettings all{.lr = 0.1,
                              .momentum = 0.5,
                              .beta1 = 0.5,
                              .beta2 = 0.5,
                              .alpha = 0.5,
                              .eps = 1e-4,
                              .weight_decay = 0.1,
                              .lr_decay = 0.1,
                              .min_8bit_size = 3,
                              .stochastic_rounding = true,
                              .seed = 3};
  for_each_setting([&](const char* name, auto member) {
    OptimizerSettings one;
    one.*member = all.*member;
    if (row.takes(name)) {
      EXPECT_EQ(make(one), "no error") << name;
    } else {
      EXPECT_THAT(make(one), AllOf(HasSubstr("'" + row.name + "' takes no " + name), HasSubstr("from lr, ")));
    }
  });
  EXPECT_EQ(make(settings_taken(row, all)), "no error");
}

INSTANTIATE_TEST_SUITE_P(EveryOptimizer, OptimizerRegistry, testing::ValuesIn(optimizers()),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(OptimizerByName, WithoutSettingsItHasTheDefaultsOfItsClass) {
  const std::vector<at::Tensor> net = {at::ones({4}).set_requires_grad(true)};
  const auto expect_same = [&](const char* name, const auto& of_class) {
    EXPECT_EQ(difference(optimizer_state(*make_optimizer(name, net)), optimizer_state(of_class)), "") << name;
  };
  expect_same("adam", Adam(net));
  expect_same("adamw", AdamW(net));
  expect_same("fused-adagrad", FusedAdagrad(net));
  expect_same("lion8bit", Lion8bit(net));
  expect_same("rmsprop8bit", RMSprop8bit(net));
  expect_same("adagrad8bit", Adagrad8bit(net));
}

TEST(OptimizerByName, SettingsReachIt) {
  const at::Tensor weight = at::ones({4}).set_requires_grad(true);
  const auto optimizer =
      make_optimizer("adamw", {weight}, {.beta1 = 0.5, .beta2 = 0.25, .eps = 1e-3, .weight_decay = 0.125});
  const auto& options = static_cast<AdamOptions&>(optimizer->param_groups()[0].options());
  EXPECT_EQ(options.betas(), std::make_tuple(0.5, 0.25));
  EXPECT_EQ(options.eps(), 1e-3);
  EXPECT_EQ(options.weight_decay(), 0.125);
  const auto rmsprop = make_optimizer("rmsprop8bit", {weight}, {.alpha = 0.75, .min_8bit_size = 4});
  EXPECT_EQ(static_cast<torch::optim::RMSpropOptions&>(rmsprop->param_groups()[0].options()).alpha(), 0.75);
  EXPECT_EQ(dynamic_cast<LowBitOptimizer&>(*rmsprop).optim_bits(weight), 8);
  EXPECT_EQ(dynamic_cast<LowBitOptimizer&>(*make_optimizer("adam8bit", {weight})).optim_bits(weight), 32);
  const auto rounding = make_optimizer("fused-sgd", {weight}, {.stochastic_rounding = true, .seed = 7});
  const StateDict state = optimizer_state(*rounding);
  EXPECT_EQ(StateReader(state).at("stochastic_rounding_seed").to_int(), 7);
}

struct TiedNet : torch::nn::Module {
  TiedNet() {
    embedding = register_module("embedding", torch::nn::Embedding(6, 4));
    bag = register_module("bag", torch::nn::EmbeddingBag(5, 4));
    fc = register_module("fc", torch::nn::Linear(4, 4));
    conv = register_module("conv", torch::nn::Conv2d(4, 4, 1));
    tied = register_parameter("tied", embedding->weight);
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::EmbeddingBag bag{nullptr};
  torch::nn::Linear fc{nullptr};
  torch::nn::Conv2d conv{nullptr};
  at::Tensor tied;
};

TEST(OptimizerByName, MuonStepsTheMatricesOfLayersAndAdamWTheRest) {
  const TiedNet net;
  for (const char* name : {"muon", "muon8bit"}) {
    const auto optimizer =
        make_optimizer(name, net, {.lr = 0.25, .momentum = 0.5, .beta2 = 0.75, .eps = 1e-3});
    ASSERT_EQ(optimizer->param_groups().size(), 2U);
    const auto& matrices = optimizer->param_groups()[0];
    const auto& rest = optimizer->param_groups()[1];
    ASSERT_EQ(matrices.params().size(), 1U);
    EXPECT_TRUE(matrices.params()[0].is_same(net.fc->weight));
    EXPECT_EQ(rest.params().size(), net.parameters().size() - 2) << "the tied weight is one of both lists";
    const auto& of_matrices = static_cast<const MuonOptions&>(matrices.options());
    const auto& of_rest = static_cast<const MuonOptions&>(rest.options());
    EXPECT_TRUE(of_matrices.use_muon());
    EXPECT_EQ(of_matrices.momentum(), 0.5);
    EXPECT_EQ(of_matrices.eps(), 1e-7);
    EXPECT_EQ(of_matrices.adjust_lr_fn(), "match_rms_adamw");
    EXPECT_FALSE(of_rest.use_muon());
    EXPECT_EQ(of_rest.betas(), std::make_tuple(0.9, 0.75));
    EXPECT_EQ(of_rest.eps(), 1e-3);
    for (const auto& group : optimizer->param_groups()) EXPECT_EQ(group.options().get_lr(), 0.25);
  }
  // Without the module, only the dimensions tell.
  EXPECT_EQ(make_optimizer("muon", net.parameters())->param_groups()[0].params().size(), 3U);
  EXPECT_EQ(make_optimizer("muon", {net.fc->bias})->param_groups().size(), 1U);
  EXPECT_EQ(make_optimizer("adam", net)->param_groups().size(), 1U);
  EXPECT_THAT(error_of([] { make_optimizer("muon", std::vector<at::Tensor>()); }),
              HasSubstr("Muon: got no parameters"));
}

TEST(OptimizerByName, AnUnknownNameIsAnErrorWithTheNearestOne) {
  EXPECT_THAT(
      error_of([] { make_optimizer("adamx", std::vector<at::Tensor>()); }),
      HasSubstr("optimizer 'adamx' is not available; did you mean 'adamw'?; choose from sgd, adamw, adam, "
                "fused-sgd, fused-adamw, fused-adam, fused-adagrad, adam8bit, adamw8bit, lion8bit, "
                "sgd8bit, rmsprop8bit, adagrad8bit, adam4bit, adamw4bit, muon, muon8bit"));
}

}  // namespace
}  // namespace mantissa::registry_test
