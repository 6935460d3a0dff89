#include "mantissa/models/sampling.h"

#include <cmath>
#include <functional>
#include <set>
#include <string>

#include <ATen/CPUGeneratorImpl.h>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::sampling_test {
namespace {

// Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625, in another order.
at::Tensor halves() { return at::tensor({0.125, 0.5, 0.0625, 0.25, 0.0625}).log(); }

/// Draws often, and returns how often each token came.
std::vector<int64_t> drawn(const SamplingOptions& options, const at::Tensor& logits = halves(),
                           int64_t draws = 4000) {
  const at::Generator generator = at::detail::createCPUGenerator(3);
  const at::Tensor tokens = sample(logits.expand({draws, -1}), options, generator);
  const at::Tensor counts = at::bincount(tokens, {}, logits.size(-1));
  return {counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + counts.numel()};
}

std::set<int64_t> tokens_of(const std::vector<int64_t>& counts) {
  std::set<int64_t> tokens;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) tokens.insert(static_cast<int64_t>(i));
  return tokens;
}

std::string error_of(const SamplingOptions& options, const at::Tensor& logits = halves()) {
  return mantissa::error_of<c10::ValueError>([&] {
    check_sampling_options(options);
    sample(logits.unsqueeze(0), options);
  });
}

using Set = std::set<int64_t>;

TEST(Sampling, FollowsTheProbabilities) {
  const auto counts = drawn({});
  for (const auto& [token, share] : {std::pair(1, 0.5), {3, 0.25}, {0, 0.125}, {2, 0.0625}, {4, 0.0625}})
    EXPECT_NEAR(static_cast<double>(counts[token]) / 4000, share, 0.03) << token;  // four standard deviations
}

TEST(Sampling, TemperatureSharpensAndFlattens) {
  EXPECT_NEAR(static_cast<double>(drawn({.temperature = 0.5})[1]) / 4000, 0.25 / (85 / 256.0), 0.03);
  EXPECT_NEAR(static_cast<double>(drawn({.temperature = 1e6})[1]) / 4000, 0.2, 0.03);
  EXPECT_EQ(tokens_of(drawn({.temperature = 0})), Set{1});
  EXPECT_EQ(tokens_of(drawn({.temperature = 1e-30})), Set{1})
      << "logits overflow to -inf, except the largest";
  for (const double nearly_0 : {1e-37, 1e-38, 1e-320, 5e-324}) {  // the last ones are 0 in float32
    EXPECT_EQ(tokens_of(drawn({.temperature = nearly_0})), Set{1}) << nearly_0;
    const at::Tensor large = halves() + 1000;  // whose quotients are inf
    EXPECT_EQ(tokens_of(drawn({.temperature = nearly_0, .top_k = 3, .top_p = 0.9}, large)), Set{1})
        << nearly_0;
  }
}

TEST(Sampling, TopKKeepsTheLikeliestAndTheirEquals) {
  EXPECT_EQ(tokens_of(drawn({.top_k = 1})), Set{1});
  EXPECT_EQ(tokens_of(drawn({.top_k = 3})), (Set{0, 1, 3}));
  EXPECT_EQ(tokens_of(drawn({.top_k = 4})), (Set{0, 1, 2, 3, 4})) << "two tokens share the fourth place";
  EXPECT_EQ(tokens_of(drawn({.top_k = 100})), (Set{0, 1, 2, 3, 4}));
}

TEST(Sampling, TopPKeepsTheFewestThatReachIt) {
  EXPECT_EQ(tokens_of(drawn({.top_p = 1e-9})), Set{1}) << "one token remains";
  EXPECT_EQ(tokens_of(drawn({.top_p = 0.49})), Set{1});
  EXPECT_EQ(tokens_of(drawn({.top_p = 0.51})), (Set{1, 3}));
  EXPECT_EQ(tokens_of(drawn({.top_p = 0.8})), (Set{0, 1, 3}));
  EXPECT_EQ(tokens_of(drawn({.top_p = 1})).size(), 5U);
}

TEST(Sampling, TopPActsOnWhatTopKLeaves) {
  // Of 0.5 and 0.25, the first has two thirds.
  EXPECT_EQ(tokens_of(drawn({.top_k = 2, .top_p = 0.6})), Set{1});
  EXPECT_EQ(tokens_of(drawn({.top_k = 2, .top_p = 0.7})), (Set{1, 3}));
}

TEST(Sampling, EachRowIsDrawnForItself) {
  const at::Tensor logits = at::tensor({0., 9., 0., 9., 0., 0.}).view({2, 3});
  EXPECT_TRUE(at::equal(sample(logits, {.temperature = 0}), at::tensor({1, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(sample(logits, {.top_k = 1}), at::tensor({1, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(sample(logits.to(at::kBFloat16), {.temperature = 0}), at::tensor({1, 0}, at::kLong)));
}

TEST(Sampling, RefusesOptionsOutOfRange) {
  using testing::HasSubstr;
  EXPECT_THAT(error_of({.temperature = -0.1}), HasSubstr("temperature is -0.1"));
  EXPECT_THAT(error_of({.temperature = NAN}), HasSubstr("temperature is nan"));
  EXPECT_THAT(error_of({.temperature = INFINITY}), HasSubstr("temperature is inf"));
  EXPECT_THAT(error_of({.top_k = -1}), HasSubstr("top_k is -1"));
  EXPECT_THAT(error_of({.top_p = 0}), HasSubstr("top_p is 0"));
  EXPECT_THAT(error_of({.top_p = 1.01}), HasSubstr("top_p is 1.01"));
  EXPECT_THAT(error_of({.top_p = NAN}), HasSubstr("top_p is nan"));
  EXPECT_EQ(error_of({.temperature = 1e-3, .top_k = 1, .top_p = 1e-3}), "no error");
}

TEST(Sampling, RefusesLogitsThatAreNotFinite) {
  for (const double temperature : {0., 1.})
    for (const double bad : {NAN, INFINITY}) {
      at::Tensor logits = halves();
      logits[2] = bad;
      EXPECT_THAT(error_of({.temperature = temperature}, logits), testing::HasSubstr("nan or inf"));
    }
  EXPECT_THAT(error_of({}, at::full({4}, -INFINITY)), testing::HasSubstr("nan or inf"));
  EXPECT_EQ(error_of({}, at::tensor({0., -double(INFINITY)})), "no error") << "a token that never comes";
}

}  // namespace
}  // namespace mantissa::sampling_test
