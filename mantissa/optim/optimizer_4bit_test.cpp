// What is particular to the 4-bit optimizers, and their form of what optimizer_8bit_test.cpp tests: parameters here
// have multiples of 128 elements, because only these have states of 4 bits.
#include "mantissa/core/test_support_internal.h"
#include "mantissa/kernels/blockwise.h"
#include "mantissa/optim/bitsandbytes_state.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/optim/optimizers_4bit.h"
#include "mantissa/optim/test_support_internal.h"

namespace mantissa::optimizer_4bit_test {
namespace {

using testing::HasSubstr;
using Made = std::unique_ptr<Adam4bit>;
using Tensors = std::vector<at::Tensor>;

struct Kind4bit {
  std::string name;
  std::function<Made(Tensors, const AdamOptions&, const LowBitOptions&)> make;
};
void PrintTo(const Kind4bit& kind, std::ostream* out) { *out << kind.name; }

template <typename Optimizer, typename Options>
Kind4bit kind(const std::string& name) {
  return {name, [](Tensors parameters, const AdamOptions& options, const LowBitOptions& all) {
            return std::make_unique<Optimizer>(std::move(parameters), Options(options), all);
          }};
}

class FourBit : public testing::TestWithParam<Kind4bit> {
 protected:
  static Made make(Tensors parameters, const LowBitOptions& options = {},
                   const AdamOptions& adam = AdamOptions(0.01).weight_decay(0.1)) {
    return GetParam().make(std::move(parameters), adam, options);
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, FourBit,
                         testing::Values(kind<Adam4bit, AdamOptions>("Adam4bit"),
                                         kind<AdamW4bit, AdamWOptions>("AdamW4bit")),
                         [](const auto& info) { return info.param.name; });

at::Tensor weight(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(6);
  return at::randn(sizes).to(dtype).set_requires_grad(true);
}

const LowBitParamState& state_of(const LowBitOptimizer& optimizer, const at::Tensor& parameter) {
  return dynamic_cast<const LowBitParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

TEST_P(FourBit, SmallAndOddParametersHave32BitStates) {
  const at::Tensor below = weight({4095}), small = weight({3968}), odd = weight({4097}),
                   large = weight({64, 64}), empty = weight({0});
  const auto optimizer = make({below, small, odd, large, empty});
  take_noisy_steps(*optimizer, 0, 1);
  for (const at::Tensor& p : {below, small, odd, empty}) {
    EXPECT_EQ(optimizer->optim_bits(p), 32);
    EXPECT_EQ(state_of(*optimizer, p).state1().scalar_type(), at::kFloat);
    EXPECT_FALSE(state_of(*optimizer, p).absmax1().defined());
  }
  EXPECT_EQ(optimizer->optim_bits(large), 4);
  for (const at::Tensor& codes :
       {state_of(*optimizer, large).state1(), state_of(*optimizer, large).state2()}) {
    EXPECT_EQ(codes.scalar_type(), at::kByte);
    EXPECT_EQ(codes.sizes(), at::IntArrayRef({2048}));
  }
  EXPECT_EQ(state_of(*optimizer, large).absmax2().sizes(), at::IntArrayRef({32}));
  EXPECT_EQ(make({small}, {.min_8bit_size = 128})->optim_bits(small), 4);
  EXPECT_EQ(make({empty}, {.min_8bit_size = 0})->optim_bits(empty), 4);
  const auto of_nothing = make({empty}, {.min_8bit_size = 0});
  take_noisy_steps(*of_nothing, 0, 2);  // a state of no blocks
}

TEST_P(FourBit, TheStatesTakeAboutOneByteForEachElement) {
  const at::Tensor p = at::zeros({1024, 1000}).set_requires_grad(true);
  const auto optimizer = make({p});
  take_noisy_steps(*optimizer, 0, 1);
  const LowBitParamState& state = state_of(*optimizer, p);
  int64_t bytes = 0;
  for (const at::Tensor& tensor : {state.state1(), state.absmax1(), state.state2(), state.absmax2()})
    bytes += static_cast<int64_t>(tensor.storage().nbytes());
  EXPECT_EQ(bytes, 2 * (p.numel() / 2 + 4 * p.numel() / 128));
  EXPECT_LE(static_cast<double>(bytes), 1.0626 * static_cast<double>(p.numel()));
}

TEST_P(FourBit, TheFirstStepEqualsThatWith32BitStates) {
  const at::Tensor few_bits = weight({5120}), many_bits = weight({5120});
  take_noisy_steps(*make({few_bits}), 0, 1);
  take_noisy_steps(*make({many_bits}, {.min_8bit_size = 5121}), 0, 1);
  EXPECT_TRUE(at::equal(few_bits, many_bits));
}

// With 32-bit states they are the Adam and AdamW of torch.optim: their weight decay comes first.
TEST_P(FourBit, With32BitStatesItIsThe32BitOptimizer) {
  const at::Tensor p = weight({5000}), q = weight({5000});
  const auto options = AdamOptions(0.01).weight_decay(0.1).maximize(true);
  take_noisy_steps(*make({p}, {}, options), 0, 10);
  if (GetParam().name == "Adam4bit") {
    Adam reference({q}, options);
    take_noisy_steps(reference, 0, 10);
  } else {
    AdamW reference({q}, AdamWOptions(options));
    take_noisy_steps(reference, 0, 10);
  }
  EXPECT_LT((p - q).abs().max().item<float>(), 2e-6F);
  EXPECT_GT((p - weight({5000})).abs().max().item<float>(), 0.05F);
}

TEST_P(FourBit, FollowsThe32BitForm) {
  const at::Tensor few_bits = weight({5120}), many_bits = weight({5120}), start = weight({5120});
  take_noisy_steps(*make({few_bits}), 0, 20);
  take_noisy_steps(*make({many_bits}, {.min_8bit_size = 5121}), 0, 20);
  const at::Tensor moved = (many_bits - start).abs().mean(), error = (few_bits - many_bits).abs().mean();
  EXPECT_GT(error.item<float>(), 0) << "the states have codes";
  EXPECT_LT(error.item<float>(), 0.3F * moved.item<float>());
}

TEST_P(FourBit, AnElementWithoutGradientNeverMoves) {
  const at::Tensor p = weight({4096});
  const auto optimizer = make({p}, {}, AdamOptions(0.01));
  for (int64_t step = 0; step < 10; ++step) {
    p.mutable_grad() = noise(step, p.sizes(), at::kFloat);
    p.mutable_grad().slice(0, 100, 300) = step % 2 == 0 ? 0.0 : -0.0;
    optimizer->step();
  }
  EXPECT_TRUE(at::equal(p.slice(0, 100, 300), weight({4096}).slice(0, 100, 300)));
  EXPECT_TRUE((p != weight({4096})).slice(0, 300).all().item<bool>());
}

TEST_P(FourBit, ANonfiniteGradientLeavesItsElementAndItsBlockFinite) {
  const at::Tensor p = weight({4096});
  const auto optimizer = make({p});
  for (int64_t step = 0; step < 4; ++step) {
    p.mutable_grad() = noise(step, p.sizes(), at::kFloat);
    if (step == 1) p.mutable_grad()[7] = NAN, p.mutable_grad()[300] = -INFINITY;
    const at::Tensor before = p.detach().clone();
    optimizer->step();
    for (const int64_t i : {7, 300})
      EXPECT_EQ(p[i].item<float>() == before[i].item<float>(), step == 1) << step;
  }
  EXPECT_TRUE(p.isfinite().all().item<bool>());
  EXPECT_TRUE(state_of(*optimizer, p).absmax1().isfinite().all().item<bool>());
}

/// Every tensor that a later step depends on.
Tensors everything(const LowBitOptimizer& optimizer, const at::Tensor& p) {
  const LowBitParamState& state = state_of(optimizer, p);
  Tensors all = {p, state.step(), state.state1(), state.absmax1(), state.state2(), state.absmax2()};
  for (at::Tensor& tensor : all) tensor = tensor.detach().clone();
  return all;
}

TEST_P(FourBit, AStepOfTheScalerDividesOrChangesNothing) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const LowBitOptions options = {.stochastic_rounding = true, .seed = 4};
    const at::Tensor p = weight({64, 66}, dtype), q = twin(p);
    const auto plain = make({p}, options), scaled = make({q}, options);
    for (int64_t step = 0; step < 3; ++step) {
      p.mutable_grad() = noise(step, p.sizes(), dtype);
      q.mutable_grad() = noise(step, p.sizes(), dtype) * 4;
      scaled->grad_scale = at::full({}, 4.0), scaled->found_inf = at::zeros({});
      plain->step();
      scaled->step();
    }
    const auto before = everything(*scaled, q);
    EXPECT_TRUE(at::equal(q, p)) << dtype;
    q.mutable_grad().fill_(INFINITY);
    scaled->found_inf = at::ones({});
    scaled->step();
    const auto after = everything(*scaled, q);
    for (size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(at::equal(after[i], before[i])) << i;
  }
}

TEST_P(FourBit, AStateInThePresentOfEveryLayoutContinuesBitForBit) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto images = [&] {
      return weight({4, 16, 10, 12}, dtype).detach().contiguous(at::MemoryFormat::ChannelsLast);
    };
    const at::Tensor straight = images().set_requires_grad(true),
                     p = images().contiguous().set_requires_grad(true);
    const LowBitOptions options = {.stochastic_rounding = true, .seed = 3};
    const auto one = make({straight}, options), two = make({p}, options);
    take_noisy_steps(*one, 0, 5);
    take_noisy_steps(*two, 0, 5);
    EXPECT_EQ(one->optim_bits(straight), 4);
    EXPECT_EQ(at::equal(p, straight), true) << "blocks follow the indices, not the memory";
    const at::Tensor q = twin(straight);
    const auto resumed = make({q}, {.stochastic_rounding = true, .seed = 99});
    if (dtype == at::kFloat) {
      save_and_load(*two, *resumed);
    } else {
      load_optimizer_state(*resumed, StateReader(snapshot(optimizer_state(*two))));
    }
    take_noisy_steps(*one, 5, 10);
    take_noisy_steps(*resumed, 5, 10);
    EXPECT_TRUE(at::equal(q, straight));
  }
}

// The gradient is positive, because the map of the first moment has no -1: a negative one would shrink by a ninth.
TEST_P(FourBit, StochasticRoundingKeepsSmallUpdatesOnAverage) {
  const auto train = [&](bool rounds) {
    const at::Tensor p = at::ones({4096}, at::kBFloat16).set_requires_grad(true);
    const auto optimizer = make({p}, {.stochastic_rounding = rounds, .seed = 1}, AdamOptions(1e-4));
    p.mutable_grad() = at::full_like(p, 0.5).detach();
    for (int step = 0; step < 300; ++step) optimizer->step();
    return p.to(at::kFloat).mean().item<float>();
  };
  EXPECT_EQ(train(false), 1);
  EXPECT_NEAR(train(true), 0.97F, 0.001F);
}

TEST_P(FourBit, DoesNotDependOnTheThreads) {
  const int threads = at::get_num_threads();
  Tensors seen;
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    const at::Tensor p = weight({400, 640});
    take_noisy_steps(*make({p}), 0, 4);
    seen.push_back(p.detach());
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(seen[0], seen[1]));
  EXPECT_TRUE(at::equal(seen[0], seen[2]));
}

TEST_P(FourBit, AnOverrideBelongsToItsParameterAndItsOptimizer) {
  torch::nn::Embedding embedding(64, 64);
  const at::Tensor fc = weight({64, 64});
  const auto optimizer = make({embedding->weight, fc}), second = make({embedding->weight});
  optimizer->override_config(*embedding, {.optim_bits = 32});
  optimizer->override_config(fc, {.lr = 0});
  take_noisy_steps(*optimizer, 0, 1);
  EXPECT_EQ(optimizer->optim_bits(embedding->weight), 32);
  EXPECT_EQ(optimizer->optim_bits(fc), 4);
  EXPECT_EQ(second->optim_bits(embedding->weight), 4);
  EXPECT_TRUE(at::equal(fc, weight({64, 64})));
  EXPECT_THAT(value_error([&] { second->override_config(embedding->weight, {.optim_bits = 8}); }),
              HasSubstr("optim_bits 8 is invalid; choose 4 or 32"));
}

TEST_P(FourBit, RefusesOtherStatesAndOptionsAndChangesNothing) {
  const at::Tensor p = weight({4096}), q = twin(p);
  const auto optimizer = make({p});
  Adam8bit eight_bit({q});
  take_noisy_steps(*optimizer, 0, 1);
  take_noisy_steps(eight_bit, 0, 1);
  const StateDict before = snapshot(optimizer_state(*optimizer)),
                  theirs = snapshot(optimizer_state(eight_bit));
  EXPECT_THAT(error_of([&] { load_optimizer_state(*optimizer, StateReader(theirs)); }),
              HasSubstr("load it into"));
  EXPECT_THAT(value_error([&] { save_and_load(eight_bit, *optimizer); }), HasSubstr("load it into"));
  EXPECT_THAT(value_error([&] { save_and_load(*optimizer, eight_bit); }), HasSubstr("load it into"));
  EXPECT_EQ(difference(optimizer_state(*optimizer), before), "");
  EXPECT_EQ(difference(optimizer_state(eight_bit), theirs), "");
  EXPECT_THAT(value_error([&] { bitsandbytes_state(*optimizer); }),
              HasSubstr("bitsandbytes has no optimizer with such states"));
  EXPECT_THAT(value_error([&] { load_bitsandbytes_state(*optimizer, StateReader(before)); }),
              HasSubstr("bitsandbytes has no optimizer"));
  EXPECT_THAT(value_error([&] { make({p}, {}, AdamOptions().amsgrad(true)); }),
              HasSubstr(GetParam().name + ": amsgrad would need a third state"));
}

TEST(FourBitOptions, DefaultsAreThoseOfAdamAndAdamW) {
  const at::Tensor p = weight({9});
  const auto decay = [](const Adam4bit& optimizer) {
    return static_cast<const AdamOptions&>(optimizer.param_groups()[0].options()).weight_decay();
  };
  EXPECT_EQ(decay(Adam4bit({p})), 0);
  EXPECT_EQ(decay(AdamW4bit({p})), 0.01);
}

}  // namespace
}  // namespace mantissa::optimizer_4bit_test
