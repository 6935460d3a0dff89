#include "mantissa/optim/stochastic_round.h"

#include <cmath>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include "mantissa/core/device.h"
#include "mantissa/optim/stochastic_round_internal.h"
#include "mantissa/optim/test_support_internal.h"

namespace mantissa::stochastic_round_test {
namespace {

constexpr uint64_t kSeed = 0x123456789abcdef0, kStep = (uint64_t{5} << 32) + 7;

at::Tensor rounded(const at::Tensor& in, at::ScalarType dtype, uint64_t seed = kSeed, uint64_t step = kStep,
                   uint64_t offset = 0) {
  return stochastic_round_(at::empty_like(in, at::TensorOptions(dtype)), in, seed, step, offset);
}

at::Tensor bits(const at::Tensor& tensor) { return tensor.view(at::kShort); }

/// Returns every 16-bit number of `dtype`, NaNs included, by its bits.
at::Tensor every_number(at::ScalarType dtype) {
  return at::arange(65536, at::kInt).to(at::kShort).view(dtype);
}

/// Returns values of every size that float32 has, of both signs, and the edge cases.
at::Tensor assorted() {
  std::vector<float> values;
  for (int exponent = -149; exponent <= 127; ++exponent) {
    for (float mantissa : {1.0F, 1.0003F, 1.23456F, 1.5F, 1.99609F, 1.99999F}) {
      values.push_back(std::ldexp(mantissa, exponent));
      values.push_back(-values.back());
    }
  }
  for (float edge :
       {0.0F,         -0.0F,         INFINITY,      -INFINITY,    NAN,
        65503.0F,     65504.0F,      65519.9F,      65520.0F,     65536.0F,
        0x1.fep127F,  0x1.feffp127F, 0x1.ffp127F,   -0x1.ffp127F, std::numeric_limits<float>::max(),
        0x1.ffcp-15F, 0x1.ffep-15F,  0x1.fff8p-15F, 0x1p-14F,     0x1p-24F,
        0x1p-25F,     0x1.8p-24F})
    values.push_back(edge);
  return at::tensor(values);
}

/// Computes the definition in doubles, from the neighbours below and above and ATen's Philox.
float definition(float in, uint64_t element, at::ScalarType dtype) {
  if (std::isnan(in) || std::isinf(in)) return in;
  const int places = dtype == at::kHalf ? 10 : 7, smallest = dtype == at::kHalf ? -14 : -126;
  const double largest = dtype == at::kHalf ? 65504.0 : 0x1.fep127, size = std::abs(double{in});
  const double ulp = std::ldexp(1, std::max(std::ilogb(size == 0 ? 1.0 : size), smallest) - places);
  if (size > largest) {
    const double beyond = dtype == at::kHalf ? 65520.0 : 0x1.ffp127;
    return std::copysign(size >= beyond ? INFINITY : static_cast<float>(largest), in);
  }
  at::philox_engine engine(kSeed, kStep, element / 8);
  uint32_t word = 0;
  for (uint64_t i = 0; i <= element % 4; ++i) word = engine();
  const uint32_t draw = element % 8 < 4 ? word & 0xffff : word >> 16;
  const double below = std::floor(size / ulp), fraction = std::floor((size / ulp - below) * 65536);
  return std::copysign(static_cast<float>((below + (fraction + draw >= 65536 ? 1 : 0)) * ulp), in);
}

class StochasticRound : public testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, StochasticRound, testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(StochasticRound, EqualsItsDefinition) {
  const at::Tensor in = assorted();
  ASSERT_NE(in.numel() % 8, 0) << "the tail of a block is tried, too";
  const at::Tensor out = rounded(in, GetParam()).to(at::kFloat);
  for (int64_t i = 0; i < in.numel(); ++i) {
    const float want = definition(in[i].item<float>(), static_cast<uint64_t>(i), GetParam()),
                got = out[i].item<float>();
    EXPECT_TRUE(std::isnan(want) ? std::isnan(got) : want == got && std::signbit(want) == std::signbit(got))
        << in[i].item<float>() << " became " << got << ", not " << want;
  }
}

TEST_P(StochasticRound, LeavesEvery16BitNumberAsItIs) {
  const at::Tensor numbers = every_number(GetParam());
  for (uint64_t step = 0; step < 4; ++step) {
    const at::Tensor out = rounded(numbers.to(at::kFloat), GetParam(), kSeed, step);
    EXPECT_TRUE(
        at::equal(bits(out).masked_select(~numbers.isnan()), bits(numbers).masked_select(~numbers.isnan())));
    EXPECT_TRUE(at::equal(out.isnan(), numbers.isnan()));
    // A quiet NaN keeps its payload, too.
    const int quiet = GetParam() == at::kHalf ? 0x200 : 0x40;
    const at::Tensor is_quiet = numbers.isnan() & (bits(numbers).to(at::kInt) & quiet).ne(0);
    EXPECT_TRUE(at::equal(bits(out).masked_select(is_quiet), bits(numbers).masked_select(is_quiet)));
  }
}

TEST_P(StochasticRound, MeanIsTheInput) {
  constexpr int64_t kTimes = 1 << 17;
  const int places = GetParam() == at::kHalf ? 10 : 7, smallest = GetParam() == at::kHalf ? -14 : -126;
  uint64_t step = 0;
  for (double value :
       {1.0001, -1.0001, 1.4142135, 3e4, -0.1, 1e-3, 6.1e-5, -3.3e-5, 1.7e-7, 2.1e-8, 1e-39, -5e-40}) {
    const auto in = static_cast<float>(value);
    const at::Tensor out = rounded(at::full({kTimes}, in), GetParam(), kSeed, ++step).to(at::kDouble);
    const double ulp = std::ldexp(1, std::max(std::ilogb(in), smallest) - places);
    const double fraction = std::abs(in) / ulp - std::floor(std::abs(in) / ulp);
    const double sigma = ulp * std::sqrt(fraction * (1 - fraction) / kTimes);
    const double cut = GetParam() == at::kHalf ? 0x1p-40 : 0;  // as the header documents
    EXPECT_NEAR(out.mean().item<double>(), double{in}, 4.5 * sigma + cut) << value;
    EXPECT_LT((out - double{in}).abs().max().item<double>(), ulp) << value;
  }
}

TEST_P(StochasticRound, CarriesAsOftenAsItsFractionSays) {
  // Chi-square over 15 fractions with 1 << 16 draws each: one degree of freedom per fraction; 45 is far out.
  constexpr int64_t kTimes = 1 << 16;
  const double ulp = GetParam() == at::kHalf ? 0x1p-10 : 0x1p-7;
  double chi_square = 0;
  for (int i = 1; i < 16; ++i) {
    const double chance = i / 16.0;
    const at::Tensor in = at::full({kTimes}, 1 + chance * ulp, at::kFloat);
    const auto ups =
        rounded(in, GetParam(), 11, static_cast<uint64_t>(i)).to(at::kDouble).gt(1).sum().item<double>();
    chi_square += std::pow(ups - chance * kTimes, 2) / (kTimes * chance * (1 - chance));
  }
  EXPECT_LT(chi_square, 45);
  EXPECT_GT(chi_square, 1) << "too even to be random";
}

TEST_P(StochasticRound, NeighbouringElementsStepsAndSeedsDrawApart) {
  const at::Tensor in = at::full({1 << 16}, 1 + (GetParam() == at::kHalf ? 0x1p-11 : 0x1p-8), at::kFloat);
  const auto ups = [&](uint64_t seed, uint64_t step) { return rounded(in, GetParam(), seed, step).gt(1); };
  const at::Tensor one = ups(1, 1);
  const auto share_equal = [&](const at::Tensor& a, const at::Tensor& b) {
    return a.eq(b).to(at::kDouble).mean().item<double>();
  };
  const double far_out = 5 * 0.5 / 256;
  EXPECT_NEAR(share_equal(one, ups(1, 2)), 0.5, far_out);
  EXPECT_NEAR(share_equal(one, ups(2, 1)), 0.5, far_out);
  EXPECT_NEAR(share_equal(one, ups(1, 1 + (uint64_t{1} << 32))), 0.5, far_out);
  EXPECT_NEAR(share_equal(one, ups(1 + (uint64_t{1} << 32), 1)), 0.5, far_out);
  for (int64_t apart : {1, 2, 4, 8, 256}) {
    EXPECT_NEAR(share_equal(one.slice(0, apart), one.slice(0, 0, -apart)), 0.5, far_out) << apart;
  }
}

TEST_P(StochasticRound, PiecesAndThreadsGiveTheBitsOfTheWhole) {
  const at::Tensor in = at::randn({100'003});
  const at::Tensor whole = rounded(in, GetParam());
  const int threads = at::get_num_threads();
  for (int count : {1, 2, 3}) {
    at::set_num_threads(count);
    EXPECT_TRUE(at::equal(rounded(in, GetParam()), whole)) << count << " threads";
  }
  at::set_num_threads(threads);
  std::vector<at::Tensor> pieces;
  int64_t begin = 0;
  for (int64_t size : {1, 6, 300, 50'001, 0, 49'695}) {
    pieces.push_back(
        rounded(in.slice(0, begin, begin + size), GetParam(), kSeed, kStep, static_cast<uint64_t>(begin)));
    begin += size;
  }
  ASSERT_EQ(begin, in.numel());
  EXPECT_TRUE(at::equal(at::cat(pieces), whole));
}

TEST_P(StochasticRound, OperationsGiveTheBitsOfTheLoop) {
  const at::Tensor in = at::cat({assorted(), at::randn({501}), every_number(GetParam()).to(at::kFloat)});
  for (uint64_t offset : {uint64_t{0}, uint64_t{3}, (uint64_t{1} << 36) + 5}) {
    const at::Tensor out = at::empty_like(in, at::TensorOptions(GetParam()));
    const at::Tensor want = rounded(in, GetParam(), kSeed, kStep, offset);
    const at::Tensor step = at::full({}, static_cast<int64_t>(kStep), at::kLong);
    stochastic_round_by_operations_(out, in, kSeed, step, offset);
    EXPECT_TRUE(at::equal(bits(out), bits(want))) << offset;
    stochastic_round_(out.zero_(), in, kSeed, step, offset);
    EXPECT_TRUE(at::equal(bits(out), bits(want))) << offset;
    for (int64_t size = 0; size < 20; ++size) {
      const at::Tensor piece = in.slice(0, 0, size), rounded_piece = at::empty_like(piece, out.options());
      stochastic_round_by_operations_(rounded_piece, piece, kSeed, step, offset);
      EXPECT_TRUE(at::equal(bits(rounded_piece), bits(want.slice(0, 0, size)))) << size << " from " << offset;
    }
  }
}

TEST_P(StochasticRound, RefusesAStepThatIsNoCount) {
  const at::Tensor in = at::randn({3}), out = at::empty_like(in, at::TensorOptions(GetParam()));
  for (const at::Tensor& step : {at::zeros({}), at::zeros({1}, at::kLong)})
    EXPECT_THROW(stochastic_round_(out, in, kSeed, step), c10::ValueError);
}

TEST_P(StochasticRound, CountsElementsInMemoryOrder) {
  const at::Tensor in = at::randn({5, 7});
  EXPECT_TRUE(at::equal(rounded(in.t(), GetParam()), rounded(in, GetParam()).t()));
}

TEST_P(StochasticRound, EqualsTheCpuOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const at::Tensor in = at::cat({assorted(), at::randn({501})});
  EXPECT_TRUE(at::equal(bits(rounded(in.cuda(), GetParam()).cpu()), bits(rounded(in, GetParam()))));
}

TEST(StochasticRoundErrors, NameWhatIsWrong) {
  const at::Tensor in = at::ones({4});
  EXPECT_THROW(stochastic_round_(at::ones({4}), in, 0, 0), c10::TypeError);
  EXPECT_THROW(stochastic_round_(at::ones({4}, at::kHalf), in.to(at::kDouble), 0, 0), c10::TypeError);
  EXPECT_THAT(value_error([&] { stochastic_round_(at::ones({5}, at::kHalf), in, 0, 0); }),
              testing::AllOf(testing::HasSubstr("[5]"), testing::HasSubstr("[4]")));
  const at::Tensor gaps = at::ones({4, 4}).slice(1, 0, 2);
  EXPECT_THAT(value_error([&] {
                stochastic_round_(at::ones({4, 4}, at::kHalf).slice(1, 0, 2), gaps, 0, 0);
              }),
              testing::HasSubstr("without gaps"));
}

TEST(StochasticRoundErrors, TellsAutogradOfTheWrite) {
  const at::Tensor out = at::zeros({4}, at::kHalf);
  const auto before = out._version();
  stochastic_round_(out, at::ones({4}), 0, 0);
  EXPECT_GT(out._version(), before);
}

}  // namespace
}  // namespace mantissa::stochastic_round_test
