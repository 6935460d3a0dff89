#include "mantissa/data/images/mix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::mix_test {
namespace {

using testing::HasSubstr;

/// Image i has the value i everywhere, and the class i.
Batch numbered(int64_t n) {
  const at::Tensor number = at::arange(n, at::kLong);
  return {number.to(at::kFloat).view({n, 1, 1, 1}).expand({n, 3, 8, 8}).contiguous(), number, {}};
}

Batch mixed_batch(const MixOptions& options, uint64_t seed, int64_t n = 4) {
  return mix_images(options)(numbered(n), at::make_generator<at::CPUGeneratorImpl>(seed));
}

TEST(Mix, MixupTakesTheSameShareOfPixelsAndClasses) {
  double sum = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const Batch batch = mixed_batch({.num_classes = 5, .mixup_alpha = 0.4}, seed);
    const double share = batch.target[1][1].item<double>();
    EXPECT_NEAR(batch.target[1][0].item<double>(), 1 - share, 1e-6);
    EXPECT_NEAR(batch.data[1].mean().item<double>(), share, 1e-6);  // image 1 with image 0
    EXPECT_NEAR(batch.data[0].mean().item<double>(), 3 * (1 - share), 1e-5);
    sum += share;
  }
  EXPECT_NEAR(sum / 400, 0.5, 0.06);
}

TEST(Mix, CutMixReplacesARectangle) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Batch batch = mixed_batch({.num_classes = 4, .cutmix_alpha = 1}, seed);
    const at::Tensor own = batch.data[1][0].eq(1).to(at::kFloat);
    EXPECT_NEAR(own.mean().item<double>(), batch.target[1][1].item<double>(), 1e-6);
    EXPECT_TRUE(batch.data[1][0].eq(1).logical_or(batch.data[1][0].eq(0)).all().item<bool>());
  }
}

TEST(Mix, BothAreDrawnEquallyOften) {
  int cut = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const at::Tensor image =
        mixed_batch({.num_classes = 4, .mixup_alpha = 1, .cutmix_alpha = 1}, seed).data[1];
    cut += image.eq(1).logical_or(image.eq(0)).all().item<bool>() ? 1 : 0;
  }
  EXPECT_NEAR(cut, 200, 50);
}

TEST(Mix, LeavesTheGivenBatchAsItWas) {
  const Batch batch = numbered(3);
  const at::Tensor before = batch.data.clone();
  mix_images({.num_classes = 3, .cutmix_alpha = 1})(batch, at::make_generator<at::CPUGeneratorImpl>(1));
  EXPECT_TRUE(batch.data.equal(before));
}

TEST(Mix, RefusesWhatItCannotMix) {
  EXPECT_THAT(error_of([] { mix_images({.mixup_alpha = 1}); }), HasSubstr("0 classes"));
  EXPECT_THAT(error_of([] { mix_images({.num_classes = 2, .mixup_alpha = -1}); }), HasSubstr("alpha -1"));
  EXPECT_THAT(error_of([] { mix_images({.num_classes = 2}); }), HasSubstr("neither"));
  EXPECT_THAT(error_of([] {
                mix_images({.num_classes = 2, .mixup_alpha = 1})(
                    {at::ones({2, 3}), at::ones({2}, at::kLong), {}},
                    at::make_generator<at::CPUGeneratorImpl>(1));
              }),
              HasSubstr("a batch has data [2, 3]"));
}

}  // namespace
}  // namespace mantissa::mix_test
