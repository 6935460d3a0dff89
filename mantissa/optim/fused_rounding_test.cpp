// Tests stochastic rounding in every fused optimizer. stochastic_round_test.cpp tests the rounding itself.
#include <ATen/Parallel.h>

#include "mantissa/optim/fused_optimizer.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/optim/fused_test_support_internal.h"
#include "mantissa/optim/stochastic_round.h"
#include "mantissa/optim/test_support_internal.h"

namespace mantissa::fused_rounding_test {
namespace {

using namespace fused_test;

class FusedRounding : public Fused {};
INSTANTIATE_TEST_SUITE_P(Kinds, FusedRounding, testing::ValuesIn(kKinds),
                         [](const auto& info) { return info.param.name; });

TEST_P(FusedRounding, StochasticallyRoundedWeightsDoNotDependOnTheThreads) {
  const int threads = at::get_num_threads();
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    std::vector<std::vector<at::Tensor>> seen;
    for (int count : {1, 2, 3}) {
      at::set_num_threads(count);
      const at::Tensor p = noise(1, {257, 259}, dtype).set_requires_grad(true),
                       small = start_parameter(dtype);
      const auto optimizer = make({small, p}, kRounding), tiny = make({twin(small)}, kRounding);
      take_noisy_steps(*optimizer, 0, 3);
      take_noisy_steps(*tiny, 0, 3);
      seen.push_back({p.detach(), small.detach(), tiny->param_groups()[0].params()[0].detach()});
    }
    expect_equal(seen[1], seen[0]);
    expect_equal(seen[2], seen[0]);
  }
  at::set_num_threads(threads);
}

TEST_P(FusedRounding, SeedsAndParametersDrawApart) {
  const at::Tensor a = large_parameter(at::kBFloat16), b = large_parameter(at::kBFloat16),
                   c = large_parameter(at::kBFloat16);
  const auto pair = make({a, b}, {.stochastic_rounding = true, .seed = 1}),
             other = make({c}, {.stochastic_rounding = true, .seed = 2});
  take_noisy_steps(*pair, 0, 1);
  take_noisy_steps(*other, 0, 1);
  EXPECT_FALSE(at::equal(a, b));
  EXPECT_FALSE(at::equal(a, c));
  EXPECT_LT((a - b).abs().max().item<double>(), 0.05) << "by one last place";
}

TEST_P(FusedRounding, WithoutASeedTheGlobalGeneratorGivesOne) {
  const auto train = [](uint64_t global_seed, bool second) {
    const at::Tensor p = large_parameter(at::kBFloat16);
    torch::manual_seed(global_seed);
    auto optimizer = make({p}, {.stochastic_rounding = true});
    if (second) optimizer = make({p}, {.stochastic_rounding = true});
    take_noisy_steps(*optimizer, 0, 1);
    return p;
  };
  EXPECT_TRUE(at::equal(train(1, false), train(1, false)));
  EXPECT_FALSE(at::equal(train(1, false), train(2, false)));
  EXPECT_FALSE(at::equal(train(1, false), train(1, true)));
}

TEST_P(FusedRounding, WithoutStochasticRoundingTheGlobalGeneratorStays) {
  torch::manual_seed(1);
  const at::Tensor next = at::rand({});
  torch::manual_seed(1);
  const at::Tensor p = at::ones({3}, at::kBFloat16).set_requires_grad(true);
  make({p});
  EXPECT_TRUE(at::equal(at::rand({}), next));
}

TEST_P(FusedRounding, StochasticRoundingLeavesOtherDtypesAlone) {
  for (at::ScalarType dtype : GetParam().dtypes) {
    if (dtype == at::kBFloat16 || dtype == at::kHalf) continue;
    const at::Tensor p = large_parameter(dtype), q = large_parameter(dtype);
    const auto plain = make({p}), rounding = make({q}, kRounding);
    take_noisy_steps(*plain, 0, 3);
    take_noisy_steps(*rounding, 0, 3);
    EXPECT_TRUE(at::equal(p, q));
  }
}

TEST(FusedSgdRounding, ParametersDrawApartFromEachOther) {
  int alike = 0;
  for (uint64_t seed = 0; seed < 16; ++seed) {
    const at::Tensor a = at::ones({16}, at::kBFloat16).set_requires_grad(true),
                     b = at::ones({16}, at::kBFloat16).set_requires_grad(true);
    FusedSGD optimizer({a, b}, SGDOptions(1.0), FusedOptions{.stochastic_rounding = true, .seed = seed});
    for (const at::Tensor& p : {a, b}) p.mutable_grad() = at::full_like(p, 0x1p-9);  // between two values
    optimizer.step();
    for (const int64_t begin : {0, 8}) alike += at::equal(a.slice(0, begin, begin + 8), b.slice(0, 0, 8));
  }
  EXPECT_LT(alike, 8);  // at random, once in 256 times
}

TEST(FusedSgdRounding, AParameterTakesTheDrawsThatFollowThoseOfTheParametersBefore) {
  std::vector<at::Tensor> net;
  for (const int64_t size : {1, 5, 16, 17, 40'000})  // the last one is updated in pieces
    net.push_back(noise(-1, {size}, at::kBFloat16).set_requires_grad(true));
  FusedSGD optimizer(net, SGDOptions(1.0), FusedOptions{.stochastic_rounding = true, .seed = 3});
  for (int64_t step = 0; step < 2; ++step) {
    std::vector<at::Tensor> want;
    uint64_t first_draw = 0;
    for (const at::Tensor& p : net) {
      p.mutable_grad() = noise(step, p.sizes(), at::kBFloat16) * 0x1p-9;
      const at::Tensor exact = p.detach().to(at::kFloat) - p.grad().to(at::kFloat);
      want.push_back(
          stochastic_round_(at::empty_like(p).detach(), exact, 3, static_cast<uint64_t>(step), first_draw));
      first_draw += static_cast<uint64_t>((p.numel() + 7) / 8 * 8);  // whole blocks of eight
    }
    net[1].mutable_grad().reset();  // its draws are left out
    want[1] = net[1].detach().clone();
    optimizer.step();
    for (size_t i = 0; i < net.size(); ++i) EXPECT_TRUE(at::equal(net[i], want[i])) << i;
  }
}

}  // namespace
}  // namespace mantissa::fused_rounding_test
