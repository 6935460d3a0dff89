#include "mantissa/models/rotary.h"

#include <cmath>

namespace mantissa::rotary_test {
namespace {

TEST(Rotary, FrequenciesFallGeometrically) {
  const at::Tensor f = rotary_frequencies(8, 10000, std::nullopt);
  ASSERT_EQ(f.sizes(), (at::IntArrayRef{4}));
  EXPECT_EQ(f.scalar_type(), at::kFloat);
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_NEAR(f[i].item<double>() / std::pow(10000.0, -2.0 * static_cast<double>(i) / 8), 1, 1e-6) << i;
}

TEST(Rotary, LinearScalingDividesEveryFrequency) {
  const at::Tensor plain = rotary_frequencies(16, 500000, std::nullopt);
  const at::Tensor scaled =
      rotary_frequencies(16, 500000, RopeScaling{.kind = RopeScaling::Kind::kLinear, .factor = 4});
  EXPECT_TRUE(at::equal(scaled * 4, plain));
}

/// The definition of the Llama 3 report, one frequency at a time in double.
double by_definition(double frequency, const RopeScaling& s) {
  const double turns = static_cast<double>(s.original_max_position_embeddings) * frequency / (2 * M_PI);
  if (turns < s.low_freq_factor) return frequency / s.factor;
  if (turns > s.high_freq_factor) return frequency;
  const double share = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return (1 - share) * frequency / s.factor + share * frequency;
}

TEST(Rotary, Llama3ScalingLowersLowFrequenciesAndBlendsTheMiddle) {
  const RopeScaling scaling{.factor = 32, .original_max_position_embeddings = 8192};
  const at::Tensor plain = rotary_frequencies(128, 500000, std::nullopt);
  const at::Tensor scaled = rotary_frequencies(128, 500000, scaling);
  int64_t kept = 0, divided = 0;
  for (int64_t i = 0; i < 64; ++i) {
    const auto before = plain[i].item<double>(), after = scaled[i].item<double>();
    EXPECT_NEAR(after / by_definition(before, scaling), 1, 1e-5) << i;
    kept += after == before;
    divided += std::abs(after * 32 / before - 1) < 1e-6;
  }
  EXPECT_GT(kept, 10);
  EXPECT_GT(divided, 10);
  EXPECT_LT(kept + divided, 64) << "some are blended";
}

TEST(Rotary, TurnsPairsAndLeavesPositionZero) {
  torch::manual_seed(1);
  const at::Tensor x = at::randn({2, 3, 5, 8}, at::kDouble);
  const RotaryAngles angles = rotary_angles(rotary_frequencies(8, 100, std::nullopt), 5, x);
  const at::Tensor y = rotate(x, angles);
  EXPECT_TRUE(at::equal(y.select(2, 0), x.select(2, 0)));
  const auto turned = [](const at::Tensor& z) { return at::complex(z.slice(3, 0, 4), z.slice(3, 4, 8)); };
  const at::Tensor by_angle = turned(y) / turned(x);
  for (int64_t t = 0; t < 5; ++t)
    for (int64_t i = 0; i < 4; ++i) {
      const double angle = static_cast<double>(t) * std::pow(100.0, -static_cast<double>(i) / 4);
      EXPECT_NEAR(at::real(by_angle)[1][2][t][i].item<double>(), std::cos(angle), 1e-5) << t << ' ' << i;
      EXPECT_NEAR(at::imag(by_angle)[1][2][t][i].item<double>(), std::sin(angle), 1e-5) << t << ' ' << i;
    }
}

TEST(Rotary, AProductDependsOnTheDistanceOnly) {
  torch::manual_seed(2);
  const at::Tensor q = at::randn({8}, at::kDouble), k = at::randn({8}, at::kDouble);
  const RotaryAngles angles = rotary_angles(rotary_frequencies(8, 100, std::nullopt), 10, q);
  const at::Tensor queries = rotate(q.expand({1, 1, 10, 8}), angles)[0][0];
  const at::Tensor keys = rotate(k.expand({1, 1, 10, 8}), angles)[0][0];
  const at::Tensor products = queries.matmul(keys.t());
  EXPECT_NEAR(products[7][4].item<double>(), products[3][0].item<double>(), 1e-5);
  EXPECT_GT(std::abs(products[7][4].item<double>() - products[7][0].item<double>()), 1e-3);
}

TEST(Rotary, AnglesHaveTheDtypeOfTheInput) {
  const at::Tensor f = rotary_frequencies(8, 100, std::nullopt);
  EXPECT_EQ(rotary_angles(f, 3, at::empty({1}, at::kBFloat16)).cos.scalar_type(), at::kBFloat16);
  EXPECT_EQ(rotary_angles(f, 3, at::empty({1}, at::kDouble)).sin.scalar_type(), at::kDouble);
}

}  // namespace
}  // namespace mantissa::rotary_test
