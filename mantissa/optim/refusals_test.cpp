// At which value each refusal of this room begins, and what it says. Each part of a condition has a value that only this
// part refuses.
#include <cmath>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/optim/adamw.h"
#include "mantissa/optim/bitsandbytes_state.h"
#include "mantissa/optim/blockwise.h"
#include "mantissa/optim/ema.h"
#include "mantissa/optim/fused_adagrad.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/optim/lr_scheduler.h"
#include "mantissa/optim/muon.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/optim/optimizers_8bit.h"
#include "mantissa/optim/sgd.h"
#include "mantissa/optim/stochastic_round.h"

namespace mantissa::refusals_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::optim::RMSpropOptions;

at::Tensor matrix() { return at::ones({2, 2}).set_requires_grad(true); }

template <typename Optimizer, typename Options>
std::string error_with(const Options& options) {
  return error_of([&] { Optimizer({matrix()}, options); });
}

/// Checks that `Optimizer` takes each of the values for one option, and refuses others by the option's name.
template <typename Optimizer, typename Options>
void expect_range(const std::string& name, const std::function<Options(double)>& with,
                  const std::vector<double>& taken, const std::vector<double>& refused) {
  for (const double value : taken)
    EXPECT_EQ(error_with<Optimizer>(with(value)), "no error") << name << " " << value;
  for (const double value : refused)
    EXPECT_THAT(error_with<Optimizer>(with(value)), AllOf(HasSubstr(name), HasSubstr(" is invalid; ")))
        << name << " " << value;
}

const double kNan = std::nan("");

TEST(Refusals, OfAdamsOptionsBeginWhereTheySay) {
  using O = AdamOptions;
  expect_range<Adam, O>("learning rate", [](double v) { return O(v); }, {0, 7}, {-1e-9, kNan});
  expect_range<Adam, O>("eps", [](double v) { return O().eps(v); }, {0, 7}, {-1e-9, kNan});
  expect_range<Adam, O>("weight_decay", [](double v) { return O().weight_decay(v); }, {0, 7}, {-1e-9, kNan});
  expect_range<Adam, O>("first beta",
                        [](double v) {
                          return O().betas({v, 0.5});
                        },
                        {0, 0.99}, {-1e-9, 1, kNan});
  expect_range<Adam, O>("second beta",
                        [](double v) {
                          return O().betas({0.5, v});
                        },
                        {0, 0.99}, {-1e-9, 1, kNan});
}

TEST(Refusals, OfSgdsOptionsBeginWhereTheySay) {
  using O = SGDOptions;
  expect_range<SGD, O>("learning rate", [](double v) { return O(v); }, {0, 7}, {-1e-9, kNan});
  expect_range<SGD, O>("momentum", [](double v) { return O(1).momentum(v); }, {0, 7}, {-1e-9, kNan});
  expect_range<SGD, O>("weight_decay", [](double v) { return O(1).weight_decay(v); }, {0, 7}, {-1e-9, kNan});
  EXPECT_EQ(error_with<SGD>(O(1).momentum(0.5).nesterov(true)), "no error");
  EXPECT_EQ(error_with<SGD>(O(1).momentum(0.5).dampening(0.5)), "no error");
  EXPECT_THAT(error_with<SGD>(O(1).nesterov(true)), HasSubstr("nesterov with momentum 0 and dampening 0"));
  EXPECT_THAT(error_with<SGD>(O(1).momentum(0.5).dampening(0.25).nesterov(true)),
              HasSubstr("nesterov with momentum 0.5 and dampening 0.25 is invalid"));
}

TEST(Refusals, OfAdagradsOptionsBeginBelow0) {
  using O = AdagradOptions;
  const std::vector<double> taken{0, 7}, refused{-1e-9, kNan};
  expect_range<FusedAdagrad, O>(
      "lr ", [](double v) { return O(v); }, taken, refused);
  expect_range<FusedAdagrad, O>(
      "lr_decay ", [](double v) { return O().lr_decay(v); }, taken, refused);
  expect_range<FusedAdagrad, O>(
      "weight_decay ", [](double v) { return O().weight_decay(v); }, taken, refused);
  expect_range<FusedAdagrad, O>(
      "initial_accumulator_value ", [](double v) { return O().initial_accumulator_value(v); }, taken,
      refused);
  expect_range<FusedAdagrad, O>(
      "eps ", [](double v) { return O().eps(v); }, taken, refused);
}

TEST(Refusals, OfMuonsOptionsBeginWhereTheySay) {
  using O = MuonOptions;
  expect_range<Muon, O>("learning rate", [](double v) { return O(v); }, {0, 7}, {-1e-9, kNan});
  expect_range<Muon, O>("weight_decay", [](double v) { return O().weight_decay(v); }, {0, 7}, {-1e-9, kNan});
  expect_range<Muon, O>("momentum", [](double v) { return O().momentum(v); }, {0, 1}, {-1e-9, 1.01, kNan});
  expect_range<Muon, O>("eps", [](double v) { return O().eps(v); }, {0, 7}, {-1e-9, kNan});
  expect_range<Muon, O>("first beta",
                        [](double v) {
                          return O().betas({v, 0.5});
                        },
                        {0, 0.99}, {-1e-9, 1, kNan});
  expect_range<Muon, O>("second beta",
                        [](double v) {
                          return O().betas({0.5, v});
                        },
                        {0, 0.99}, {-1e-9, 1, kNan});
  const auto steps = [](double v) { return O().ns_steps(static_cast<int64_t>(v)); };
  expect_range<Muon, O>("ns_steps", steps, {0, 99}, {-1, 100});
  EXPECT_EQ(error_with<Muon>(O().adjust_lr_fn("original")), "no error");
  EXPECT_EQ(error_with<Muon>(O().adjust_lr_fn("match_rms_adamw")), "no error");
}

TEST(Refusals, OfOptionsThat8BitOptimizersLackAreOnePerOption) {
  using S = SGDOptions;
  expect_range<SGD8bit, S>("momentum", [](double v) { return S(1).momentum(v); }, {0.01, 0.99}, {0, 1, kNan});
  EXPECT_THAT(error_with<SGD8bit>(S(1).momentum(0.5).dampening(0.25)),
              HasSubstr("dampening 0.25 and nesterov 0 have no 8-bit form"));
  EXPECT_THAT(error_with<SGD8bit>(S(1).momentum(0.5).nesterov(true)),
              HasSubstr("dampening 0 and nesterov 1 have no 8-bit form"));
  using R = RMSpropOptions;
  expect_range<RMSprop8bit, R>("learning rate", [](double v) { return R(v); }, {0, 7}, {-1e-9, kNan});
  expect_range<RMSprop8bit, R>("alpha", [](double v) { return R().alpha(v); }, {0.01, 0.99},
                               {-1e-9, 1, kNan});
  expect_range<RMSprop8bit, R>("eps", [](double v) { return R().eps(v); }, {0, 7}, {-1e-9, kNan});
  expect_range<RMSprop8bit, R>("weight_decay", [](double v) { return R().weight_decay(v); }, {0, 7},
                               {-1e-9, kNan});
  EXPECT_THAT(error_with<RMSprop8bit>(R().alpha(0)), HasSubstr("alpha 0 keeps no state"));
  EXPECT_THAT(error_with<RMSprop8bit>(R().momentum(0.5)),
              HasSubstr("momentum 0.5 and centered 0 would need"));
  EXPECT_THAT(error_with<RMSprop8bit>(R().centered(true)), HasSubstr("momentum 0 and centered 1 would need"));
  using A = AdagradOptions;
  EXPECT_THAT(error_with<Adagrad8bit>(A().lr_decay(0.5)),
              HasSubstr("lr_decay 0.5 and initial_accumulator_value 0 have no 8-bit form"));
  EXPECT_THAT(error_with<Adagrad8bit>(A().initial_accumulator_value(0.5)),
              HasSubstr("lr_decay 0 and initial_accumulator_value 0.5 have no 8-bit form"));
  EXPECT_EQ(error_with<Adagrad8bit>(A()), "no error");
}

TEST(Refusals, OfOverridesBeginWhereTheySay) {
  const at::Tensor p = matrix();
  Adam8bit adam({p});
  const auto error = [&](const LowBitOverride& settings) {
    return error_of([&] { adam.override_config(p, settings); });
  };
  EXPECT_EQ(error({.optim_bits = 8,
                   .min_8bit_size = 0,
                   .lr = 0,
                   .beta1 = 0,
                   .beta2 = 0,
                   .eps = 0,
                   .weight_decay = 0}),
            "no error");
  EXPECT_EQ(error({.optim_bits = 32}), "no error");
  EXPECT_THAT(error({.optim_bits = 4}), HasSubstr("optim_bits 4 is invalid; choose 8 or 32"));
  EXPECT_THAT(error({.min_8bit_size = -1}), HasSubstr("min_8bit_size -1 is invalid"));
  EXPECT_THAT(error({.lr = -1}), HasSubstr("an override with lr -1 is invalid; it must be 0 or more"));
  EXPECT_THAT(error({.beta1 = 1}), HasSubstr("an override with beta1 1 is invalid; it must be in [0, 1)"));
  EXPECT_THAT(error({.beta2 = 1}), HasSubstr("an override with beta2 1 is invalid; it must be in [0, 1)"));
  EXPECT_EQ(error({.eps = 1}), "no error");
  EXPECT_EQ(error({.weight_decay = 1}), "no error");
  const auto no_effect = [&](auto& optimizer, const LowBitOverride& settings) {
    return error_of([&] { optimizer.override_config(p, settings); });
  };
  SGD8bit sgd({p}, SGDOptions(1).momentum(0.5));
  Lion8bit lion({p});
  Adagrad8bit adagrad({p});
  EXPECT_THAT(no_effect(sgd, {.beta2 = 0.5}), HasSubstr("an override of beta2 has no effect"));
  EXPECT_THAT(no_effect(sgd, {.eps = 0.5}), HasSubstr("an override of eps has no effect"));
  EXPECT_EQ(no_effect(sgd, {.beta1 = 0.5}), "no error");
  EXPECT_THAT(no_effect(lion, {.eps = 0.5}), HasSubstr("an override of eps has no effect"));
  EXPECT_EQ(no_effect(lion, {.beta2 = 0.5}), "no error");
  EXPECT_THAT(no_effect(adagrad, {.beta1 = 0.5}), HasSubstr("an override of beta1 has no effect"));
  EXPECT_EQ(no_effect(adagrad, {.eps = 0.5}), "no error");
}

TEST(Refusals, OfSchedulesBeginWhereTheySay) {
  SGD optimizer({matrix()}, SGDOptions(1));
  const auto error = [&](const WarmupCosineOptions& options) {
    return error_of([&] { WarmupCosineLR schedule(optimizer, options); });
  };
  EXPECT_EQ(error({.warmup_steps = 0, .total_steps = 1}), "no error");
  EXPECT_EQ(error({.warmup_steps = 4, .total_steps = 5}), "no error");
  EXPECT_THAT(error({.warmup_steps = -1, .total_steps = 5}), HasSubstr("warmup_steps -1 is invalid"));
  EXPECT_THAT(error({.warmup_steps = 5, .total_steps = 5}),
              HasSubstr("total_steps 5 leaves no step after warmup_steps 5"));
  EXPECT_THAT(error({.total_steps = 5, .final_factor = 1.01}), HasSubstr("final_factor 1.01 is invalid"));
  EXPECT_THAT(error({.total_steps = 5, .final_factor = -0.01}), HasSubstr("final_factor -0.01 is invalid"));
  WarmupCosineLR schedule(optimizer, {.total_steps = 5});
  const int64_t most = std::numeric_limits<unsigned>::max();
  for (const int64_t wrong : {int64_t{-1}, most + 1})
    EXPECT_THAT(error_of([&] { schedule.resume_at(wrong); }), HasSubstr(" steps cannot have been taken"));
  EXPECT_EQ(error_of([&] { schedule.resume_at(most); }), "no error");
  EXPECT_EQ(error_of([&] { schedule.resume_at(0); }), "no error");
}

TEST(Refusals, OfSparseGradientsNameTheShape) {
  const auto error = [](auto optimizer, const at::Tensor& p) {
    p.mutable_grad() = at::ones({2, 2}).to_sparse();
    return error_of([&] { optimizer.step(); });
  };
  const at::Tensor p = matrix();
  EXPECT_THAT(error(Adam({p}), p), HasSubstr("Adam: a parameter of shape [2, 2] has a sparse gradient"));
  EXPECT_THAT(error(FusedSGD({p}, SGDOptions(1)), p),
              HasSubstr("FusedSGD: a parameter of shape [2, 2] has a sparse gradient"));
}

TEST(Refusals, OfCodesOfOtherDtypes) {
  const auto error = [](const at::Tensor& codes, const at::Tensor& absmax) {
    return error_of([&] { dequantize_blockwise({codes, absmax}); });
  };
  const at::Tensor codes = at::zeros({3}, at::kByte), absmax = at::zeros({1});
  EXPECT_EQ(error(codes, absmax), "no error");
  EXPECT_THAT(error(codes.to(at::kInt), absmax),
              HasSubstr("needs uint8 codes and float32 absmax; they are Int"));
  EXPECT_THAT(error(codes, absmax.to(at::kDouble)), HasSubstr("they are Byte and Double"));
}

TEST(Refusals, OfAnAverageThatHasTensorsAndNoUpdates) {
  torch::nn::Linear net(1, 1);
  ExponentialMovingAverage ema(*net);
  const auto error = [&](const StateDict& state) {
    return error_of([&] { ema.load_state_dict(StateReader(state, "ema")); });
  };
  EXPECT_THAT(error({{"num_updates", 0}, {"averages", StateList{at::ones({1, 1})}}}),
              HasSubstr("ema.averages: is not empty, although num_updates is 0"));
  EXPECT_EQ(error({{"num_updates", 0}, {"averages", StateList()}}), "no error");
  EXPECT_THAT(error({{"num_updates", 1}, {"averages", StateList()}}),
              HasSubstr("there are averages of 0 tensors"));
}

TEST(Refusals, OfWhatCannotBeRoundedStochastically) {
  const at::Tensor in = at::zeros({4, 2}), out = at::zeros({4, 2}, at::kHalf);
  const auto error = [](const at::Tensor& to, const at::Tensor& from) {
    const std::string refused = error_of([&] { stochastic_round_(to, from, 0, 0); });
    EXPECT_EQ(error_of([&] { stochastic_round_(to, from, 0, at::zeros({}, at::kLong)); }), refused);
    return refused;
  };
  EXPECT_EQ(error(out, in), "no error");
  EXPECT_EQ(error(out.to(at::kBFloat16), in), "no error");
  EXPECT_THAT(error(out, in.to(at::kDouble)), HasSubstr("got Double to Half"));
  EXPECT_THAT(error(in.clone(), in), HasSubstr("got Float to Float"));
  EXPECT_THAT(error(at::zeros({2, 4}, at::kHalf), in), HasSubstr("needs two tensors of one shape"));
  EXPECT_THAT(error(at::zeros({2, 4}, at::kHalf).t(), in), HasSubstr("and one memory layout without gaps"));
  EXPECT_THAT(error(at::zeros({4, 4}, at::kHalf).slice(1, 0, 2), at::zeros({4, 4}).slice(1, 0, 2)),
              HasSubstr("without gaps on one device; got [4, 2] strides [4, 1]"));
  const auto step_error = [&](const at::Tensor& step) {
    return error_of([&] { stochastic_round_(out, in, 0, step); });
  };
  EXPECT_EQ(step_error(at::zeros({}, at::kLong)), "no error");
  EXPECT_THAT(step_error(at::zeros({}, at::kInt)), HasSubstr("the step must be a 0-dim int64 tensor on cpu"));
  EXPECT_THAT(step_error(at::zeros({1}, at::kLong)), HasSubstr("of shape [1] on cpu"));
}

TEST(Refusals, OfAStateThatBitsandbytesCannotExpress) {
  Adam8bit upwards({matrix()}, AdamOptions(0.1).maximize(true));
  EXPECT_THAT(error_of([&] { bitsandbytes_state(upwards); }),
              HasSubstr("parameter group 0 maximizes, which bitsandbytes cannot; negate the loss instead"));
}

TEST(Refusals, OfNumbersOfStepsBeginAboveTheLargestCount) {
  const at::Tensor p = matrix();
  Adam adam({p});
  p.mutable_grad() = at::ones({2, 2});
  adam.step();
  const auto error_at = [&](const StateValue& step) {
    StateDict state = snapshot(optimizer_state(adam));
    (*(*state.at("state").get_if<StateDict>()).at("0").get_if<StateDict>()).insert_or_assign("step", step);
    return error_of([&] { load_optimizer_state(adam, StateReader(state)); });
  };
  EXPECT_EQ(error_at(at::scalar_tensor(0.0)), "no error");
  EXPECT_EQ(error_at(at::scalar_tensor(static_cast<double>(kMaxCount), at::kDouble)), "no error");
  EXPECT_THAT(error_at(at::scalar_tensor(2.0 * static_cast<double>(kMaxCount), at::kDouble)),
              HasSubstr("a number from 0 to "));
  EXPECT_THAT(error_at(at::ones({2})), HasSubstr("is not a single number"));
}

}  // namespace
}  // namespace mantissa::refusals_test
