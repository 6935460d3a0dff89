#include "mantissa/kernels/cpu/blockwise.h"

#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/code_tables.h"
#include "mantissa/kernels/aten/operand.h"
#include "mantissa/kernels/state_codes.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::kernels::cpu::blockwise_test {

/// For GoogleTest's messages.
void PrintTo(const BlockwiseBuild& build, std::ostream* out) { *out << tier_name(build.tier); }

namespace {

using test::same_bits;

constexpr DynamicMap kMaps[] = {DynamicMap::kSigned, DynamicMap::kUnsigned};
constexpr UpdateRule kRules[] = {UpdateRule::kAdam, UpdateRule::kAdamDecayFirst, UpdateRule::kLion,
                                 UpdateRule::kSGD,  UpdateRule::kRMSprop,        UpdateRule::kAdagrad};
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

const float (&table_of(DynamicMap map))[256] {
  return map == DynamicMap::kSigned ? kDynamicSigned : kDynamicUnsigned;
}

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<float> absmax;

  bool operator==(const Quantized&) const = default;
};

Quantized quantized(const BlockwiseBuild& build, DynamicMap map, const std::vector<float>& in) {
  Quantized out;
  out.codes.resize(in.size());
  out.absmax.resize((in.size() + kStateBlock - 1) / kStateBlock);
  quantize_blockwise({in.data(), out.codes.data(), out.absmax.data(), static_cast<int64_t>(in.size()), map},
                     build);
  return out;
}

std::vector<float> dequantized(const BlockwiseBuild& build, DynamicMap map, const Quantized& in) {
  std::vector<float> out(in.codes.size());
  dequantize_blockwise({in.codes.data(), in.absmax.data(), out.data(), static_cast<int64_t>(out.size()), map},
                       build);
  return out;
}

class Blockwise : public testing::TestWithParam<BlockwiseBuild> {
 protected:
  void SetUp() override {
    if (!cpu_features().includes(features_of(GetParam().tier)))
      GTEST_SKIP() << "no " << tier_name(GetParam().tier) << " here";
  }
};
INSTANTIATE_TEST_SUITE_P(EveryBuild, Blockwise, testing::ValuesIn(blockwise_builds()),
                         [](const auto& info) { return tier_name(info.param.tier); });

/// Puts `numbers` behind a 1 in each block, so that they are their own quotients.
std::vector<float> with_absmax_1(const std::vector<float>& numbers) {
  std::vector<float> blocks;
  for (const float number : numbers) {
    if (blocks.size() % kStateBlock == 0) blocks.push_back(1);
    blocks.push_back(number);
  }
  return blocks;
}

// The neighbours of every middle between two codes decide whether a monotonic function is right everywhere.
TEST_P(Blockwise, Q35_CodesAreTheNearestOnBothSidesOfEveryMiddle) {
  for (const DynamicMap map : kMaps) {
    const auto& table = table_of(map);
    std::vector<float> numbers = {0.0F, -0.0F, 1e-30F, -1e-30F, 1e-45F, -1, 0.999F};
    for (int code = 0; code < 255; ++code) {
      const auto middle = static_cast<float>((static_cast<double>(table[code]) + table[code + 1]) / 2);
      for (int ulps = -40; ulps <= 40; ++ulps)
        numbers.push_back(std::bit_cast<float>(std::bit_cast<int32_t>(middle) + ulps));
    }
    for (int32_t bits = 0x30000000; bits < 0x3f800000; bits += 4093) {
      numbers.push_back(std::bit_cast<float>(bits));
      numbers.push_back(-numbers.back());
    }
    const std::vector<float> in = with_absmax_1(numbers);
    const Quantized out = quantized(GetParam(), map, in);
    for (size_t i = 0; i < in.size(); ++i)
      ASSERT_EQ(out.codes[i], nearest_code(table, in[i])) << in[i] << " at " << i;
    for (const float absmax : out.absmax) EXPECT_EQ(absmax, 1);
  }
}

TEST_P(Blockwise, Q37_EveryValueOfTheMapKeepsItsCode) {
  for (const DynamicMap map : kMaps) {
    for (const float scale : {1.0F, 0.37F, 3e30F, 1e-30F, 1e-37F}) {
      std::vector<float> in;
      for (const float value : table_of(map)) in.push_back(value * scale);
      const Quantized out = quantized(GetParam(), map, in);
      for (size_t code = 0; code < 256; ++code) EXPECT_EQ(out.codes[code], code) << scale;
      EXPECT_EQ(dequantized(GetParam(), map, out), in);
    }
  }
}

TEST_P(Blockwise, Q52_TheMostNegativeNumberComesBackTooSmall) {
  std::vector<float> in(300, 0.25F);
  in[7] = -2, in[290] = -3;
  const std::vector<float> out =
      dequantized(GetParam(), DynamicMap::kSigned, quantized(GetParam(), DynamicMap::kSigned, in));
  EXPECT_EQ(out[7], -0.99296874F * 2);
  EXPECT_EQ(out[290], -0.99296874F * 3);
}

TEST_P(Blockwise, TailsZerosAndTheLargestNumbersEqualTheReference) {
  const BlockwiseBuild& reference = blockwise_builds().back();
  torch::manual_seed(1);
  for (const DynamicMap map : kMaps) {
    for (const int64_t count : {0, 1, 7, 8, 9, 15, 17, 31, 33, 63, 65, 255, 256, 257, 511, 513, 3001}) {
      for (const float scale : {1.0F, 0.0F, 1e-42F, 1e-38F, 3e38F, std::numeric_limits<float>::infinity()}) {
        const at::Tensor random = at::randn({count}).clamp(-1, 1) * scale;
        std::vector<float> in(random.const_data_ptr<float>(), random.const_data_ptr<float>() + count);
        if (count > 5) in[5] = std::numeric_limits<float>::quiet_NaN();
        const Quantized want = quantized(reference, map, in), got = quantized(GetParam(), map, in);
        ASSERT_EQ(got, want) << count << " * " << scale;
        for (const float absmax : got.absmax) ASSERT_TRUE(std::isfinite(absmax));
        ASSERT_EQ(dequantized(GetParam(), map, got), dequantized(reference, map, want)) << count;
      }
    }
  }
}

TEST_P(Blockwise, NanIsStoredAsZero) {
  for (const DynamicMap map : kMaps) {
    const Quantized out = quantized(GetParam(), map, {1, NAN, -NAN, 0.5F});
    EXPECT_EQ(dequantized(GetParam(), map, out)[1], 0);
    EXPECT_EQ(dequantized(GetParam(), map, out)[2], 0);
    EXPECT_EQ(out.absmax[0], 1);
  }
}

/// Returns gradients that reach every branch. Each is made once, because that takes longer than a step.
at::Tensor gradient_of(int64_t step, at::ScalarType dtype, int64_t count) {
  static std::map<std::tuple<int64_t, at::ScalarType, int64_t>, at::Tensor> made;
  at::Tensor& gradient = made[{step, dtype, count}];
  if (!gradient.defined()) {
    torch::manual_seed(10 + static_cast<uint64_t>(step));
    gradient = (at::randn({count}) * at::exp(at::randn({count}) * 3)).to(dtype);
    if (count > 8) {
      gradient[3] = 0, gradient[4] = -0.0, gradient[5] = 1e-7;
      if (step == 2) gradient[6] = NAN, gradient[7] = INFINITY, gradient[8] = -INFINITY;
    }
  }
  return gradient.clone();
}

/// A parameter and its states.
struct Trained {
  at::Tensor parameter, codes1, codes2, absmax1, absmax2, values1, values2, gradient;
  BlockwiseUpdate update;

  Trained(UpdateRule rule, at::ScalarType dtype, int64_t count, int bits) {
    torch::manual_seed(3);
    const int64_t size = bits == 4 ? kState4Block : kStateBlock, blocks = (count + size - 1) / size;
    parameter = at::randn({count}).to(dtype);
    codes1 = at::zeros({count}, at::kByte), codes2 = codes1.clone();
    absmax1 = at::zeros({blocks}), absmax2 = absmax1.clone();
    values1 = at::zeros({count}), values2 = values1.clone();
    update.rule = rule;
    update.element = element_of(dtype);
    update.parameter = parameter.mutable_data_ptr();
    update.count = count;
    update.has_4_bit_codes = bits == 4;
    update.state1 = state(codes1, absmax1, values1, bits < 32);
    if (has_second_state(rule)) update.state2 = state(codes2, absmax2, values2, bits < 32);
    update.factors = {.step_size = 0.01F,
                      .beta1 = 0.9F,
                      .beta2 = 0.99F,
                      .rest1 = 0.1F,
                      .rest2 = 0.01F,
                      .eps = 1e-8F,
                      .decay = 0.02F,
                      .keep = 0.999F};
  }
  static UpdateState state(const at::Tensor& codes, const at::Tensor& absmax, const at::Tensor& values,
                           bool has_codes) {
    if (has_codes) return {codes.mutable_data_ptr<uint8_t>(), absmax.mutable_data_ptr<float>(), nullptr};
    return {nullptr, nullptr, values.mutable_data_ptr<float>()};
  }
  void step(const BlockwiseBuild& build, int64_t number) {
    gradient = gradient_of(number, parameter.scalar_type(), update.count);
    update.gradient = gradient.mutable_data_ptr();
    update.stream = number;
    update_blockwise({update}, build);
  }
  std::vector<at::Tensor> everything() const {
    return {parameter, codes1, codes2, absmax1, absmax2, values1, values2, gradient};
  }
};

void expect_same(const Trained& got, const Trained& want) {
  const auto a = got.everything(), b = want.everything();
  for (size_t i = 0; i < a.size(); ++i) ASSERT_TRUE(same_bits(a[i], b[i])) << i;
}

const std::vector<int64_t> kCounts = {0, 9, 256, 1003}, kCountsOf4Bits = {0, 128, 256, 1024 - 128};

TEST_P(Blockwise, EveryRuleHasTheBitsOfTheReference) {
  const BlockwiseBuild& reference = blockwise_builds().back();
  for (const UpdateRule rule : kRules) {
    for (const auto dtype : kDtypes) {
      for (const int bits : {4, 8, 32}) {
        if (bits == 4 && !has_second_state(rule)) continue;
        for (const int64_t count : bits == 4 ? kCountsOf4Bits : kCounts) {
          for (const int variant : {0, 1, 2}) {
            Trained got(rule, dtype, count, bits), want(rule, dtype, count, bits);
            for (Trained* const each : {&got, &want}) {
              each->update.maximize = variant == 1;
              each->update.grad_scale = variant == 1 ? 3 : 1;
              each->update.rounds_stochastically = variant == 2;
              each->update.seed = 5, each->update.first_draw = 24;
            }
            for (int64_t step = 0; step < 4; ++step) {
              got.step(GetParam(), step);
              want.step(reference, step);
            }
            SCOPED_TRACE(testing::Message() << static_cast<int>(rule) << " " << dtype << " " << bits << " "
                                            << count << " " << variant);
            expect_same(got, want);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(Blockwise, Q48_AGradientThatIsNotFiniteChangesOnlyTheStatesOfItsElement) {
  for (const UpdateRule rule : kRules) {
    Trained got(rule, at::kFloat, 600, 8);
    got.step(GetParam(), 0);
    const at::Tensor before = got.parameter.clone();
    got.step(GetParam(), 2);  // nan, inf and -inf at 6, 7 and 8
    for (const int64_t i : {6, 7, 8}) {
      EXPECT_TRUE(same_bits(got.parameter[i], before[i]));
      EXPECT_EQ(got.codes1[i].item<int>(), 127);
      EXPECT_EQ(got.codes2[i].item<int>(), 0);
    }
    EXPECT_FALSE(at::equal(got.parameter[9], before[9]));
    for (const at::Tensor& tensor : {got.parameter, got.absmax1, got.absmax2})
      EXPECT_TRUE(tensor.isfinite().all().item<bool>());
  }
}

// Otherwise the first moment would be divided by eps in a step whose gradient is 0.
TEST_P(Blockwise, SmallStatesKeepTheirSign) {
  Trained got(UpdateRule::kAdam, at::kFloat, 256, 8);
  got.gradient = at::zeros({256});
  got.gradient[0] = 1, got.gradient[1] = 1e-7, got.gradient[2] = -1e-7, got.gradient[3] = -0.0;
  got.update.gradient = got.gradient.mutable_data_ptr();
  update_blockwise({got.update}, GetParam());
  EXPECT_EQ(got.codes1[1].item<int>(), 128);  // 1e-7 of the largest
  EXPECT_EQ(got.codes1[2].item<int>(), 126);
  EXPECT_EQ(got.codes1[3].item<int>(), 127);
  EXPECT_EQ(got.codes2[1].item<int>(), 1);
  EXPECT_EQ(got.codes2[2].item<int>(), 1);
  EXPECT_EQ(got.codes2[3].item<int>(), 0);
}

TEST_P(Blockwise, ASecondMomentThatOverflowsLeavesItsBlockFinite) {
  Trained got(UpdateRule::kAdam, at::kFloat, 300, 8);
  got.gradient = at::ones({300});
  got.gradient[9] = 1e30;
  got.update.gradient = got.gradient.mutable_data_ptr();
  for (int step = 0; step < 3; ++step) update_blockwise({got.update}, GetParam());
  EXPECT_EQ(got.absmax2[0].item<float>(), std::numeric_limits<float>::max());
  EXPECT_TRUE(got.parameter.isfinite().all().item<bool>());
}

/// Takes an update that stores the numbers as the first state and their squares as the second one.
Trained stored(const BlockwiseBuild& build, const std::vector<float>& numbers, int bits) {
  Trained one(UpdateRule::kAdam, at::kFloat, static_cast<int64_t>(numbers.size()), bits);
  one.gradient = at::tensor(numbers);
  one.update.gradient = one.gradient.mutable_data_ptr();
  one.update.factors = {.beta1 = 0, .beta2 = 0, .rest1 = 1, .rest2 = 1};
  update_blockwise({one.update}, build);
  return one;
}

/// The code of a state by its thresholds.
int state_code_by_definition(DynamicMap map, float x) {
  const float(&least)[255] =
      (map == DynamicMap::kSigned ? kSignedStateThresholds : kUnsignedStateThresholds).least;
  int rank = 0;
  for (const float threshold : least) rank += std::abs(x) >= threshold;
  return map == DynamicMap::kUnsigned ? rank : x < 0 ? 127 - std::min(rank, 127) : 127 + rank;
}

// Both sides of every threshold decide whether the tiers' formula is right everywhere.
TEST_P(Blockwise, StatesHaveTheCodesOfTheirThresholds) {
  std::vector<float> numbers = {0.0F, -0.0F, 1e-45F, -1e-45F, 1e-30F, -1e-30F, -1, 0.999F};
  for (const StateThresholds* const thresholds : {&kSignedStateThresholds, &kUnsignedStateThresholds}) {
    for (const float least : thresholds->least) {
      if (std::isinf(least)) continue;
      for (const float near : {least, std::sqrt(least)}) {
        for (int ulps = -3; ulps <= 3; ++ulps) {
          const float number = std::bit_cast<float>(std::bit_cast<int32_t>(near) + ulps);
          if (std::abs(number) > 1) continue;
          numbers.push_back(number), numbers.push_back(-number);
        }
      }
    }
  }
  const std::vector<float> in = with_absmax_1(numbers);
  const Trained got = stored(GetParam(), in, 8);
  for (size_t i = 0; i < in.size(); ++i) {
    const auto place = static_cast<int64_t>(i);
    const float square = in[i] * in[i];
    ASSERT_EQ(got.codes1[place].item<int>(), state_code_by_definition(DynamicMap::kSigned, in[i])) << in[i];
    ASSERT_EQ(got.codes2[place].item<int>(), state_code_by_definition(DynamicMap::kUnsigned, square))
        << square;
  }
}

// The shortcuts of state_codes.h stay within what it says of them.
TEST(StateCodes, AreThoseOfTheMapsButForTheirShortcuts) {
  for (const DynamicMap map : kMaps) {
    const int zero = map == DynamicMap::kSigned ? kSignedZero : 0;
    const auto& least =
        (map == DynamicMap::kSigned ? kSignedStateThresholds : kUnsignedStateThresholds).least;
    for (int rank = 1; zero + rank < 255; ++rank) {
      const double low = table_of(map)[zero + rank], high = table_of(map)[zero + rank + 1];
      EXPECT_NEAR(least[rank], (low + high) / 2, 2e-5 * (high - low)) << rank;
    }
    EXPECT_EQ(least[0], std::numeric_limits<float>::denorm_min());
    for (const auto& build : blockwise_builds()) {
      if (!cpu_features().includes(features_of(build.tier))) continue;
      // A step with gradient 0 and these factors decodes the states into the parameter.
      for (const float absmax : {1.0F, 0.37F, 3e30F, 1e-30F}) {
        Trained one(map == DynamicMap::kSigned ? UpdateRule::kSGD : UpdateRule::kAdam, at::kFloat, 256, 8);
        one.parameter.zero_();
        one.codes1 = at::arange(256).to(at::kByte), one.codes2 = one.codes1.clone();
        one.absmax1.fill_(absmax), one.absmax2.fill_(absmax);
        one.update.state1 = Trained::state(one.codes1, one.absmax1, at::Tensor(), true);
        if (map == DynamicMap::kUnsigned)
          one.update.state2 = Trained::state(one.codes2, one.absmax2, at::Tensor(), true);
        one.gradient = at::zeros({256});
        one.update.gradient = one.gradient.mutable_data_ptr();
        one.update.factors = {.step_size = -1, .beta1 = 1, .beta2 = 1, .rest1 = 0, .rest2 = 0};
        update_blockwise({one.update}, build);
        for (int code = 0; code < 256; ++code) {
          const double value = static_cast<double>(table_of(map)[code]) * absmax;
          if (map == DynamicMap::kSigned) {
            EXPECT_NEAR(one.parameter[code].item<float>(), value, std::abs(value) * 1e-6) << code;
          }
          EXPECT_EQ(one.codes1[code].item<int>(), code) << "a value keeps its code";
          if (map == DynamicMap::kUnsigned) {
            EXPECT_EQ(one.codes2[code].item<int>(), code);
          }
        }
      }
    }
  }
}

/// torchao's rule: the code below, or the next one from half of their distance on, all in float32.
int code4_by_definition(float x) {
  int code = 0;
  while (code < 15 && x >= kDynamic4Signed[code + 1]) ++code;
  if (x < kDynamic4Signed[0] || code == 15) return code;
  const float low = kDynamic4Signed[code], high = kDynamic4Signed[code + 1];
  return x - low >= (high - low) * 0.5F ? code + 1 : code;
}

int code4_at(const at::Tensor& codes, int64_t i) {
  const int byte = codes[i / 2].item<int>();
  return i % 2 == 0 ? byte >> 4 : byte & 15;
}

TEST_P(Blockwise, CodesOf4BitsAreTheNearestOnBothSidesOfEveryMiddle) {
  std::vector<float> numbers = {0.0F, -0.0F, 1e-30F, -1e-30F, -1, 0.999F, -0.9F};
  for (int code = 0; code < 15; ++code) {
    const float middle = kDynamic4Signed[code] / 2 + kDynamic4Signed[code + 1] / 2;
    for (int ulps = -6; ulps <= 6; ++ulps)
      numbers.push_back(std::bit_cast<float>(std::bit_cast<int32_t>(middle) + ulps));
  }
  for (int rank = 1; rank <= 16; ++rank) {  // of the second state
    const float root = std::sqrt((static_cast<float>(rank) - 0.5F) / 16);
    for (int ulps = -6; ulps <= 6; ++ulps)
      numbers.push_back(std::bit_cast<float>(std::bit_cast<int32_t>(root) + ulps));
  }
  for (size_t begin = 0; begin < numbers.size(); begin += 127) {
    std::vector<float> block(128, 0.0F);
    block[0] = 1;
    for (size_t i = begin; i < std::min(begin + 127, numbers.size()); ++i) block[1 + i - begin] = numbers[i];
    const Trained got = stored(GetParam(), block, 4);
    EXPECT_EQ(got.absmax1[0].item<float>(), 1);
    for (int64_t i = 0; i < 128; ++i) {
      const float number = block[static_cast<size_t>(i)], square = number * number;
      ASSERT_EQ(code4_at(got.codes1, i), code4_by_definition(number)) << number;
      const int nearest = std::clamp(static_cast<int>(std::floor(square * 16 - 0.5F)), 0, 15);
      ASSERT_EQ(code4_at(got.codes2, i), nearest) << square;
    }
  }
}

TEST_P(Blockwise, ElementsOf4BitsWithoutGradientNeverMove) {
  Trained got(UpdateRule::kAdamDecayFirst, at::kFloat, 384, 4);
  got.update.factors.decay = 0, got.update.factors.keep = 1;
  const at::Tensor start = got.parameter.clone();
  for (int step = 0; step < 5; ++step) {
    got.gradient = gradient_of(step, at::kFloat, 384);
    got.gradient.slice(0, 50, 90) = step % 2 == 0 ? 0.0 : -0.0;
    got.gradient.slice(0, 256, 384) = 0;  // a whole block
    got.update.gradient = got.gradient.mutable_data_ptr();
    update_blockwise({got.update}, GetParam());
  }
  EXPECT_TRUE(same_bits(got.parameter.slice(0, 50, 90), start.slice(0, 50, 90)));
  EXPECT_TRUE(same_bits(got.parameter.slice(0, 256, 384), start.slice(0, 256, 384)));
  EXPECT_FALSE(at::equal(got.parameter.slice(0, 0, 50), start.slice(0, 0, 50)));
  EXPECT_EQ(got.absmax1[2].item<float>(), 1e-12F);
}

TEST_P(Blockwise, StatesOf4BitsStayFiniteWhateverTheGradient) {
  Trained got(UpdateRule::kAdam, at::kFloat, 256, 4);
  got.gradient = at::ones({256});
  got.gradient[9] = 1e30, got.gradient[10] = NAN, got.gradient[11] = -INFINITY;
  got.update.gradient = got.gradient.mutable_data_ptr();
  const at::Tensor start = got.parameter.clone();
  for (int step = 0; step < 3; ++step) update_blockwise({got.update}, GetParam());
  EXPECT_EQ(got.absmax2[0].item<float>(), std::numeric_limits<float>::max());
  float second_moment = 0;
  for (int step = 0; step < 3; ++step) second_moment = 0.99F * second_moment + 0.01F;
  EXPECT_EQ(got.absmax2[1].item<float>(), second_moment);
  EXPECT_TRUE(got.parameter.isfinite().all().item<bool>());
  for (const int64_t i : {10, 11}) {
    EXPECT_TRUE(same_bits(got.parameter[i], start[i]));
    EXPECT_EQ(code4_at(got.codes1, i), 7);
  }
}

TEST(BlockwiseUpdates, DoNotDependOnTheThreadsNorOnTheOtherProblems) {
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> seen;
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    std::vector<Trained> all;
    for (const int64_t size : {100'000, 0, 5, 70'001})
      all.emplace_back(UpdateRule::kAdam, at::kBFloat16, size, size == 5 ? 32 : 8);
    std::vector<BlockwiseUpdate> problems;
    for (Trained& each : all) {
      each.update.rounds_stochastically = true;
      each.gradient = at::linspace(-1, 1, each.update.count).to(at::kBFloat16);
      each.update.gradient = each.gradient.mutable_data_ptr();
      problems.push_back(each.update);
    }
    update_blockwise(problems);
    std::vector<at::Tensor> flat;
    for (const Trained& each : all)
      for (const at::Tensor& tensor : each.everything()) flat.push_back(tensor.to(at::kDouble).view(-1));
    seen.push_back(at::cat(flat));
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(seen[0], seen[1]));
  EXPECT_TRUE(at::equal(seen[0], seen[2]));
}

}  // namespace
}  // namespace mantissa::kernels::cpu::blockwise_test
