#include "mantissa/data/transform.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::transform_test {
namespace {

using testing::HasSubstr;

at::Generator generator_of(uint64_t seed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>();
  generator.set_current_seed(seed);
  return generator;
}

TEST(Stack, RefusesSamplesThatDoNotFit) {
  EXPECT_THAT(error_of([] { stack({}); }), HasSubstr("no samples"));
  EXPECT_THAT(error_of([] {
                stack({{at::ones({2}), {}, {}}, {at::ones({3}), {}, {}}});
              }),
              HasSubstr("'data' of sample 1 has the shape [3], of sample 0 [2]; crop or pad"));
  EXPECT_THAT(error_of([] {
                stack({{at::ones({2}), {}, {}}, {at::ones({2}), at::ones({}), {}}});
              }),
              HasSubstr("of sample 0 and sample 1 only one has 'target'"));
  for (const bool first : {false, true}) {
    std::vector<Batch> samples(2, {at::ones({2}), {}, {}});
    samples[first ? 0 : 1].fields.emplace("mask", at::ones({2}));
    EXPECT_THAT(error_of([&] { stack(samples); }), HasSubstr("only one has 'mask'"));
  }
}

TEST(Stack, GivesEveryTensorADimension) {
  const Batch sample{at::ones({2, 3}), at::full({}, 7, at::kLong), {{"mask", at::zeros({4}, at::kBool)}}};
  const Batch batch = stack({sample, sample, sample});
  EXPECT_EQ(batch.data.sizes(), (std::vector<int64_t>{3, 2, 3}));
  EXPECT_TRUE(at::equal(batch.target, at::full({3}, 7, at::kLong)));
  EXPECT_EQ(batch.fields.at("mask").sizes(), (std::vector<int64_t>{3, 4}));
  EXPECT_FALSE(stack({{at::ones({1}), {}, {}}}).target.defined());
}

TEST(PerSample, FlipsSomeOfThem) {
  const Transform flip = per_sample([](Batch sample, const at::Generator& generator) {
    EXPECT_EQ(sample.data.dim(), 1);
    EXPECT_EQ(sample.target.dim(), 0);
    if (at::rand({}, generator, at::kFloat).item<float>() < 0.5) sample.data = sample.data.flip(0);
    return sample;
  });
  const Batch batch{at::arange(200).view({100, 2}), at::arange(100), {}};
  const Batch flipped = flip(batch, generator_of(3));
  EXPECT_TRUE(at::equal(flipped.target, batch.target));
  EXPECT_TRUE(at::equal(std::get<0>(flipped.data.sort(1)), batch.data));
  const int64_t unchanged = flipped.data.eq(batch.data).all(1).sum().item<int64_t>();
  EXPECT_GT(unchanged, 30);
  EXPECT_LT(unchanged, 70);
  EXPECT_TRUE(at::equal(flip(batch, generator_of(3)).data, flipped.data));
  EXPECT_FALSE(at::equal(flip(batch, generator_of(4)).data, flipped.data));
}

TEST(PerSample, RefusesNothing) {
  EXPECT_THAT(error_of([] { per_sample({}); }), HasSubstr("no transform"));
}

}  // namespace
}  // namespace mantissa::transform_test
