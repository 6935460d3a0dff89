// What is particular to the 8-bit optimizers. fused_optimizer_test.cpp and optimizer_state_test.cpp test what
// they share with the others.
#include "mantissa/core/test_support_internal.h"
#include "mantissa/optim/eight_bit_test_support_internal.h"
#include "mantissa/optim/low_bit_optimizer.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/optim/optimizers_8bit.h"
#include "mantissa/optim/test_support_internal.h"

namespace mantissa::optimizer_8bit_test {
namespace {

using namespace test8bit;
using testing::HasSubstr;
using torch::optim::OptimizerParamGroup;
using torch::optim::RMSpropOptions;

INSTANTIATE_TEST_SUITE_P(Kinds, EightBit, testing::ValuesIn(all_8bit_optimizers()),
                         [](const auto& info) { return info.param.name; });

const LowBitParamState& state_of(const LowBitOptimizer& optimizer, const at::Tensor& parameter) {
  return dynamic_cast<const LowBitParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

bool has_8_bits(const LowBitOptimizer& optimizer, const at::Tensor& parameter) {
  const LowBitParamState& state = state_of(optimizer, parameter);
  EXPECT_EQ(state.absmax1().defined(), state.state1().scalar_type() == at::kByte);
  EXPECT_EQ(optimizer.optim_bits(parameter), state.absmax1().defined() ? 8 : 32);
  return state.absmax1().defined();
}

/// The bytes of everything that the optimizer keeps for a parameter but the step counter.
int64_t state_bytes(const LowBitOptimizer& optimizer, const at::Tensor& parameter) {
  const LowBitParamState& state = state_of(optimizer, parameter);
  int64_t bytes = 0;
  for (const at::Tensor& tensor : {state.state1(), state.absmax1(), state.state2(), state.absmax2()})
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.storage().nbytes());
  return bytes;
}

TEST_P(EightBit, Q44_SmallParametersHave32BitStates) {
  const at::Tensor below = weight(4095), at_least = weight(4096), tiny = weight(8), empty = weight(0);
  const auto optimizer = make({below, at_least, empty});
  take_noisy_steps(*optimizer, 0, 1);
  EXPECT_FALSE(has_8_bits(*optimizer, below));
  EXPECT_TRUE(has_8_bits(*optimizer, at_least));
  EXPECT_FALSE(has_8_bits(*optimizer, empty));
  const auto others = make({tiny, below}, {.min_8bit_size = 9});
  take_noisy_steps(*others, 0, 1);
  EXPECT_FALSE(has_8_bits(*others, tiny));
  EXPECT_TRUE(has_8_bits(*others, below));
  EXPECT_THAT(value_error([&] { make({tiny}, {.min_8bit_size = -1}); }),
              HasSubstr("min_8bit_size -1 is invalid"));
}

TEST_P(EightBit, Q43_TheFirstStepEqualsThatWith32BitStates) {
  const at::Tensor few_bits = weight(5000), many_bits = weight(5000);
  take_noisy_steps(*make({few_bits}), 0, 1);
  take_noisy_steps(*make({many_bits}, {.min_8bit_size = 5001}), 0, 1);
  EXPECT_TRUE(at::equal(few_bits, many_bits));
}

TEST_P(EightBit, FollowsThe32BitFormWithinTheErrorOfItsCodes) {
  const at::Tensor few_bits = weight(5000), many_bits = weight(5000), start = weight(5000);
  take_noisy_steps(*make({few_bits}), 0, 20);
  take_noisy_steps(*make({many_bits}, {.min_8bit_size = 5001}), 0, 20);
  const at::Tensor moved = (many_bits - start).abs().mean(), error = (few_bits - many_bits).abs().mean();
  EXPECT_GT(error.item<float>(), 0) << "the states have codes";
  EXPECT_LT(error.item<float>(), 0.05F * moved.item<float>());
}

TEST_P(EightBit, Q40_AnElementWithoutGradientNeverMoves) {
  const at::Tensor p = weight(4096);
  const Made optimizer = GetParam().name == "AdamW8bit"
                             ? std::make_unique<AdamW8bit>(std::vector<at::Tensor>{p},
                                                           AdamWOptions(AdamOptions(0.01).weight_decay(0)))
                             : make({p});
  for (int64_t step = 0; step < 11; ++step) {  // odd: steps of Lion cannot cancel
    p.mutable_grad() = noise(step, p.sizes(), at::kFloat);
    p.mutable_grad().slice(0, 100, 300) = step % 2 == 0 ? 0.0 : -0.0;
    optimizer->step();
  }
  EXPECT_TRUE(at::equal(p.slice(0, 100, 300), weight(4096).slice(0, 100, 300)));
  EXPECT_TRUE((p != weight(4096)).slice(0, 300).all().item<bool>());
}

// The squares of such gradients, and so the largest second moment of a block, are subnormal numbers or 0.
TEST_P(EightBit, TinyGradientsLeaveWeightsFinite) {
  for (int exponent = -16; exponent >= -24; --exponent) {
    const at::Tensor p = weight(4096);
    const Made optimizer = make({p});
    for (int64_t step = 0; step < 6; ++step) {
      p.mutable_grad() = step < 3 ? noise(step, p.sizes(), at::kFloat).mul(std::pow(10.0, exponent))
                                  : at::zeros_like(p).detach();
      optimizer->step();
      EXPECT_TRUE(at::isfinite(p).all().item<bool>()) << "1e" << exponent << ", step " << step;
    }
  }
}

TEST_P(EightBit, Q48_ANonfiniteGradientStaysAtItsElement) {
  for (const int64_t count : {4096, 100}) {  // 8 and 32 bits
    const at::Tensor with = weight(count), without = weight(count);
    const auto one = make({with}), two = make({without});
    for (int64_t step = 0; step < 4; ++step) {
      with.mutable_grad() = noise(step, with.sizes(), at::kFloat);
      without.mutable_grad() = noise(step, with.sizes(), at::kFloat);
      without.mutable_grad()[7] = 0, with.mutable_grad()[7] = step == 1 ? NAN : step == 2 ? -INFINITY : 0;
      const at::Tensor before = with.detach().clone();
      one->step();
      two->step();
      if (step == 1 || step == 2) {
        EXPECT_EQ(with[7].item<float>(), before[7].item<float>());
      }
    }
    const at::Tensor others = at::arange(count) != 7;
    EXPECT_TRUE(at::equal(with.masked_select(others), without.masked_select(others)));
    EXPECT_TRUE(with.isfinite().all().item<bool>());
  }
}

TEST_P(EightBit, Q50_TheStatesHaveTheBytesThatTheirFormNeeds) {
  const int64_t count = 1'000'000, blocks = (count + 255) / 256;
  const at::Tensor p = at::zeros({1000, 1000}).set_requires_grad(true), q = weight(4000);
  const auto optimizer = make({p, q});
  take_noisy_steps(*optimizer, 0, 1);
  const int64_t states = state_of(*optimizer, p).state2().defined() ? 2 : 1;
  EXPECT_EQ(state_bytes(*optimizer, p), states * (count + 4 * blocks));
  EXPECT_EQ(state_bytes(*optimizer, q), states * 4 * 4000);
  EXPECT_LE(static_cast<double>(state_bytes(*optimizer, p)) / count, 2.05);
}

TEST_P(EightBit, Q49_AStateInThePresentOfEveryLayoutContinuesBitForBit) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto images = [&] {
      torch::manual_seed(8);
      return at::randn({4, 16, 10, 10}).to(dtype).contiguous(at::MemoryFormat::ChannelsLast);
    };
    const at::Tensor straight = images().set_requires_grad(true),
                     p = images().contiguous().set_requires_grad(true);
    const LowBitOptions options = {.stochastic_rounding = true, .seed = 3};
    const auto one = make({straight}, options), two = make({p}, options);
    take_noisy_steps(*one, 0, 5);
    take_noisy_steps(*two, 0, 5);
    EXPECT_TRUE(at::equal(p, straight)) << "blocks follow the indices, not the memory";
    const at::Tensor q = twin(straight);
    const auto resumed = make({q}, {.stochastic_rounding = true, .seed = 99});
    save_and_load(*two, *resumed);
    take_noisy_steps(*one, 5, 10);
    take_noisy_steps(*resumed, 5, 10);
    EXPECT_TRUE(at::equal(q, straight));
    EXPECT_TRUE(straight.is_contiguous(at::MemoryFormat::ChannelsLast));
  }
}

TEST_P(EightBit, AStateWithOtherStridesContinuesBitForBit) {
  for (const int64_t min_8bit_size : {1, 1 << 20}) {
    const at::Tensor p = weight(32 * 64).detach().view({32, 64}).set_requires_grad(true);
    const auto straight = make({p}, {.min_8bit_size = min_8bit_size});
    take_noisy_steps(*straight, 0, 3);
    StateDict saved = snapshot(optimizer_state(*straight));
    for (auto& [name, value] : *saved.at("state").get_if<StateDict>()->at("0").get_if<StateDict>())
      if (const auto* tensor = value.get_if<at::Tensor>(); tensor && tensor->dim() == 2)
        value = tensor->t().contiguous().t();
    const at::Tensor q = twin(p);
    const auto resumed = make({q}, {.min_8bit_size = min_8bit_size});
    load_optimizer_state(*resumed, StateReader(saved));
    take_noisy_steps(*straight, 3, 5);
    take_noisy_steps(*resumed, 3, 5);
    EXPECT_TRUE(at::equal(p, q)) << min_8bit_size;
  }
}

TEST_P(EightBit, StepsMayBeCountedInAnotherDtype) {
  const at::Tensor p = weight(5000);
  const auto straight = make({p});
  take_noisy_steps(*straight, 0, 3);
  const at::Tensor start = twin(p);
  StateDict saved = snapshot(optimizer_state(*straight));
  take_noisy_steps(*straight, 3, 5);
  StateValue& steps = saved.at("state").get_if<StateDict>()->at("0").get_if<StateDict>()->at("step");
  for (const auto dtype : {at::kDouble, at::kLong}) {
    steps = at::full({1}, 3, dtype);
    const at::Tensor q = twin(start);
    const auto resumed = make({q});
    load_optimizer_state(*resumed, StateReader(saved));
    take_noisy_steps(*resumed, 3, 5);
    EXPECT_TRUE(at::equal(q, p)) << dtype;
  }
  steps = 3.0;
  const StateDict before = snapshot(optimizer_state(*straight));
  EXPECT_THAT(value_error([&] { load_optimizer_state(*straight, StateReader(saved)); }),
              HasSubstr("the optimizer does not load all of it (loaded and saved: state.0.step"));
  EXPECT_EQ(difference(optimizer_state(*straight), before), "");
}

TEST_P(EightBit, TakesGradientsOfAnotherDtypeAndLeavesThemUnscaled) {
  const at::Tensor p = weight(4096).to(at::kBFloat16).detach().set_requires_grad(true), q = twin(p);
  const auto one = make({p}), two = make({q});
  p.mutable_grad() = noise(1, p.sizes(), at::kBFloat16);
  q.mutable_grad() = noise(1, p.sizes(), at::kFloat) * 8;
  two->grad_scale = at::full({}, 8.0);
  one->step();
  two->step();
  EXPECT_TRUE(at::equal(p, q));
  EXPECT_TRUE(at::equal(q.grad(), noise(1, p.sizes(), at::kFloat)));
}

TEST_P(EightBit, ChangesTheVersionOfItsParameters) {
  const at::Tensor p = weight(100);
  const auto optimizer = make({p});
  const auto before = p._version();
  take_noisy_steps(*optimizer, 0, 1);
  EXPECT_GT(p._version(), before) << "so that autograd notices a saved weight that changed";
}

struct Net : torch::nn::Module {
  Net() {
    embed = register_module("embed", torch::nn::Embedding(torch::nn::EmbeddingOptions(64, 64)));
    fc = register_module("fc", torch::nn::Linear(64, 64));
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::Linear fc{nullptr};
};

TEST_P(EightBit, Q45_AnOverrideBelongsToItsOptimizer) {
  Net net, other;
  const auto optimizer = make(net.parameters());
  optimizer->override_config(*net.embed, {.optim_bits = 32});
  const auto second = make(other.parameters());
  take_noisy_steps(*optimizer, 0, 1);
  take_noisy_steps(*second, 0, 1);
  EXPECT_FALSE(has_8_bits(*optimizer, net.embed->weight));
  EXPECT_TRUE(has_8_bits(*optimizer, net.fc->weight));
  EXPECT_TRUE(has_8_bits(*second, other.embed->weight));
  // It is the same parameter in a second optimizer, and has no override there.
  const auto third = make(net.parameters());
  take_noisy_steps(*third, 1, 2);
  EXPECT_TRUE(has_8_bits(*third, net.embed->weight));
}

TEST_P(EightBit, OverridesByNameAndOfTheSize) {
  Net net;
  const auto optimizer = make(net.parameters());
  optimizer->override_config(net, "embed.weight", {.optim_bits = 32});
  optimizer->override_config(net.fc->bias, {.min_8bit_size = 0});
  take_noisy_steps(*optimizer, 0, 1);
  EXPECT_FALSE(has_8_bits(*optimizer, net.embed->weight));
  EXPECT_TRUE(has_8_bits(*optimizer, net.fc->bias));
}

TEST_P(EightBit, Q46_AnOverrideOfTheRateChangesOnlyItsParameter) {
  const at::Tensor a = weight(5000), b = weight(5000), plain = weight(5000), fast = weight(5000);
  const auto optimizer = make({a, b}), one = make({plain}), two = make({fast});
  optimizer->override_config(b, {.lr = 0.125});
  two->param_groups()[0].options().set_lr(0.125);
  for (auto* each : {optimizer.get(), one.get(), two.get()}) take_noisy_steps(*each, 0, 3);
  EXPECT_TRUE(at::equal(a, plain));
  // Each parameter has the same noise, because it has the same shape.
  EXPECT_TRUE(at::equal(b, fast));
  EXPECT_FALSE(at::equal(b, a));
}

TEST(EightBitOptions, AnOverrideReplacesEachNumberOfItsGroup) {
  const auto stepped = [](const AdamOptions& options, const LowBitOverride& override) {
    const at::Tensor p = weight(5000);
    Adam8bit optimizer({p}, options);
    optimizer.override_config(p, override);
    take_noisy_steps(optimizer, 0, 3);
    return p;
  };
  const auto options = [] { return AdamOptions(0.01); };
  EXPECT_TRUE(at::equal(stepped(options(), {.beta1 = 0.5}), stepped(options().betas({0.5, 0.999}), {})));
  EXPECT_TRUE(at::equal(stepped(options(), {.beta2 = 0.9}), stepped(options().betas({0.9, 0.9}), {})));
  EXPECT_TRUE(at::equal(stepped(options(), {.eps = 0.25}), stepped(options().eps(0.25), {})));
  EXPECT_TRUE(at::equal(stepped(options(), {.weight_decay = 2}), stepped(options().weight_decay(2), {})));
}

TEST_P(EightBit, AnOverrideMovesToTheParameterThatIsSteppedInstead) {
  const at::Tensor before = weight(5000), now = weight(5000);
  const auto optimizer = make({before});
  optimizer->override_config(before, {.optim_bits = 32});
  optimizer->replaced_parameter(before, now);
  EXPECT_EQ(optimizer->optim_bits(now), 32);
  EXPECT_EQ(optimizer->optim_bits(before), 8);
}

TEST_P(EightBit, RefusesOverridesThatMatchNothingOrComeTooLate) {
  Net net;
  const at::Tensor stranger = weight(9);
  const auto optimizer = make({net.fc->weight, net.fc->bias});
  EXPECT_THAT(value_error([&] { optimizer->override_config(stranger, {.optim_bits = 32}); }),
              HasSubstr("an override is for a parameter that this optimizer does not step"));
  EXPECT_THAT(value_error([&] { optimizer->override_config(at::Tensor(), {.optim_bits = 32}); }),
              HasSubstr("does not step"));
  EXPECT_THAT(value_error([&] { optimizer->override_config(*net.embed, {.optim_bits = 32}); }),
              HasSubstr("of which this optimizer steps no parameter"));
  EXPECT_THAT(value_error([&] { optimizer->override_config(net, "fc.wieght", {.optim_bits = 32}); }),
              HasSubstr("'fc.wieght', and the module has no such parameter; did you mean 'fc.weight'?"));
  EXPECT_THAT(value_error([&] { optimizer->override_config(net.fc->bias, {.optim_bits = 16}); }),
              HasSubstr("optim_bits 16 is invalid; choose 8 or 32"));
  EXPECT_THAT(value_error([&] { optimizer->override_config(net.fc->bias, {.lr = -1}); }),
              HasSubstr("an override with lr -1 is invalid"));
  EXPECT_THAT(value_error([&] { optimizer->override_config(net.fc->bias, {.weight_decay = NAN}); }),
              HasSubstr("an override with weight_decay nan is invalid"));
  EXPECT_THAT(value_error([&] { optimizer->override_config(net.fc->bias, {.min_8bit_size = -1}); }),
              HasSubstr("an override with min_8bit_size -1 is invalid"));
  take_noisy_steps(*optimizer, 0, 1);
  EXPECT_THAT(
      value_error([&] { optimizer->override_config(net.fc->weight, {.optim_bits = 32}); }),
      HasSubstr("has states already, so that their bits are fixed; override them before the first step"));
  EXPECT_TRUE(has_8_bits(*optimizer, net.fc->weight));
  optimizer->add_param_group(OptimizerParamGroup({net.embed->weight}));  // it has no state yet
  EXPECT_THAT(value_error([&] { optimizer->override_config(net, {.optim_bits = 32}); }),
              HasSubstr("has states already"));
  EXPECT_EQ(optimizer->optim_bits(net.embed->weight), 8) << "no parameter of the module has changed";
  optimizer->override_config(net.fc->weight, {.lr = 0});
  const at::Tensor before = net.fc->weight.detach().clone();
  take_noisy_steps(*optimizer, 1, 2);
  EXPECT_LE((net.fc->weight - before).abs().max().item<float>(), 0);
}

TEST_P(EightBit, AStateOfOtherBitsIsRefusedByName) {
  const at::Tensor p = weight(4096), q = twin(p);
  const auto optimizer = make({p}), other = make({q});
  other->override_config(q, {.optim_bits = 32});
  take_noisy_steps(*optimizer, 0, 1);
  take_noisy_steps(*other, 0, 1);
  const StateDict before = snapshot(optimizer_state(*other));
  EXPECT_THAT(error_of([&] { load_optimizer_state(*other, StateReader(optimizer_state(*optimizer))); }),
              testing::AnyOf(HasSubstr("state.0.absmax1: is not a value of this optimizer's state"),
                             HasSubstr("state.0.state1: is Byte; Float was expected")));
  EXPECT_EQ(difference(optimizer_state(*other), before), "");
  EXPECT_THAT(value_error([&] { save_and_load(*optimizer, *other); }), HasSubstr("load it into"));
  EXPECT_EQ(difference(optimizer_state(*other), before), "");
}

TEST_P(EightBit, AParameterThatWasResizedIsRefusedBeforeAnythingIsWritten) {
  for (const auto& [before, after] :
       {std::pair<int64_t, int64_t>{8192, 65536}, {8192, 4352}, {8192, 100}, {100, 8192}}) {
    const at::Tensor p = weight(before), other = weight(before);
    const auto optimizer = make({other});
    optimizer->add_param_group(OptimizerParamGroup({p}));  // the first group must not step, either
    take_noisy_steps(*optimizer, 0, 2);
    p.set_data(weight(after).detach());
    p.mutable_grad() = at::ones({after});
    const at::Tensor was = other.detach().clone(), resized = p.detach().clone();
    EXPECT_THAT(error_of([&] { optimizer->step(); }), HasSubstr("which does not fit; it was resized"));
    EXPECT_TRUE(at::equal(other, was) && at::equal(p, resized)) << before << " to " << after;
  }
}

TEST_P(EightBit, AnAbsmaxOfAnotherSizeIsRefusedBeforeAnythingIsWritten) {
  const at::Tensor p = weight(8192);
  const auto optimizer = make({p});
  take_noisy_steps(*optimizer, 0, 2);
  const at::Tensor was = p.detach().clone();
  dynamic_cast<LowBitParamState&>(*optimizer->state().at(p.unsafeGetTensorImpl())).absmax1(at::ones({3}));
  EXPECT_THAT(error_of([&] { optimizer->step(); }), HasSubstr("a state of [3] in Float, which does not fit"));
  EXPECT_TRUE(at::equal(p, was));
}

TEST(EightBitOptions, Q47_WhatHasNo8BitFormIsRefused) {
  const std::vector<at::Tensor> net = {weight(9)};
  EXPECT_THAT(value_error([&] { Adam8bit(net, AdamOptions().amsgrad(true)); }),
              HasSubstr("Adam8bit: amsgrad would need a third state"));
  EXPECT_THAT(value_error([&] {
                AdamW8bit(net, AdamWOptions(AdamOptions().betas({0.9, 1})));
              }),
              HasSubstr("AdamW8bit: second beta 1 is invalid"));
  EXPECT_THAT(value_error([&] {
                Lion8bit(net, LionOptions().betas({-0.1, 0.5}));
              }),
              HasSubstr("Lion8bit: first beta"));
  EXPECT_THAT(value_error([&] { SGD8bit(net, SGDOptions(0.1)); }),
              HasSubstr("SGD8bit: momentum 0 is invalid"));
  EXPECT_THAT(value_error([&] { SGD8bit(net, SGDOptions(0.1).momentum(0.9).dampening(0.5)); }),
              HasSubstr("SGD8bit: dampening 0.5"));
  EXPECT_THAT(value_error([&] { SGD8bit(net, SGDOptions(0.1).momentum(0.9).nesterov(true)); }),
              HasSubstr("nesterov"));
  EXPECT_THAT(value_error([&] { RMSprop8bit(net, RMSpropOptions().alpha(0)); }),
              HasSubstr("RMSprop8bit: alpha 0"));
  EXPECT_THAT(value_error([&] { RMSprop8bit(net, RMSpropOptions().alpha(1)); }),
              HasSubstr("alpha 1 is invalid"));
  EXPECT_THAT(value_error([&] { RMSprop8bit(net, RMSpropOptions().centered(true)); }), HasSubstr("centered"));
  EXPECT_THAT(value_error([&] { RMSprop8bit(net, RMSpropOptions().eps(-1)); }),
              HasSubstr("eps -1 is invalid"));
  EXPECT_THAT(value_error([&] { RMSprop8bit(net, RMSpropOptions().momentum(0.5)); }),
              HasSubstr("momentum 0.5"));
  EXPECT_THAT(value_error([&] { Adagrad8bit(net, AdagradOptions().lr_decay(0.1)); }),
              HasSubstr("lr_decay 0.1"));
  EXPECT_THAT(value_error([&] { Adagrad8bit(net, AdagradOptions().initial_accumulator_value(1)); }),
              HasSubstr("initial_accumulator_value 1"));
  Adam8bit adam(net);
  EXPECT_THAT(value_error([&] { Lion8bit(net).override_config(net[0], {.eps = 1e-3}); }),
              HasSubstr("an override of eps has no effect"));
  EXPECT_THAT(value_error([&] { adam.override_config(net[0], {.beta2 = 1}); }),
              HasSubstr("must be in [0, 1)"));
  static_cast<AdamOptions&>(adam.param_groups()[0].options()).amsgrad(true);
  EXPECT_THAT(value_error([&] { take_noisy_steps(adam, 0, 1); }), HasSubstr("amsgrad"));
  EXPECT_TRUE(at::equal(net[0], weight(9)));
}

TEST(EightBitOptions, Q41_DecayWithoutGradientIsAFactor) {
  const at::Tensor p = weight(4096);
  AdamW8bit optimizer({p}, AdamWOptions(AdamOptions(0.1).weight_decay(0.5)));
  at::Tensor want = p.detach().to(at::kDouble);
  for (int step = 0; step < 4; ++step) {
    p.mutable_grad() = at::zeros_like(p).detach();
    optimizer.step();
    want *= 1 - 0.1 * 0.5;
  }
  EXPECT_TRUE(((p.to(at::kDouble) - want).abs() <= want.abs() * 8 * 0x1p-23).all().item<bool>());
}

TEST(EightBitOptions, AFileOfAnotherEightBitOptimizerIsRefused) {
  const at::Tensor p = weight(4096), q = weight(4096);
  Adam8bit adam({p});
  Lion8bit lion({q});
  take_noisy_steps(adam, 0, 1);
  take_noisy_steps(lion, 0, 1);
  EXPECT_THAT(value_error([&] { save_and_load(adam, lion); }), HasSubstr("a state2"));
  EXPECT_THAT(value_error([&] { save_and_load(lion, adam); }), HasSubstr("no state2"));
}

}  // namespace
}  // namespace mantissa::optimizer_8bit_test
