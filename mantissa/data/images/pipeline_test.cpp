#include "mantissa/data/images/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/data/images/test_support_internal.h"

namespace mantissa::pipeline_test {
namespace {

using testing::HasSubstr;

TEST(ImageAugmentation, CropsAreWithinTheImage) {
  const ImageAugmentation augmentation({.size = 32});
  for (const auto& [height, width] :
       {std::pair<int64_t, int64_t>{375, 500}, {1, 1}, {20000, 1}, {1, 20000}, {3, 2}})
    for (uint64_t seed = 0; seed < 200; ++seed) {
      ImageRandom random(seed);
      const ImageRegion crop = augmentation.geometry(height, width, random).source;
      EXPECT_GE(crop.top, 0);
      EXPECT_GE(crop.left, 0);
      EXPECT_GE(crop.height, 1);
      EXPECT_GE(crop.width, 1);
      EXPECT_LE(crop.top + crop.height, static_cast<double>(height));
      EXPECT_LE(crop.left + crop.width, static_cast<double>(width));
    }
}

TEST(ImageAugmentation, EqualSeedsGiveEqualImages) {
  const ImageAugmentation augmentation(
      {.color_jitter = {0.4, 0.4, 0.4, 0.1}, .rand_augment = RandAugmentOptions{}});
  const auto made = [&](uint64_t seed) {
    Image image = gradient_image(40, 40);
    ImageRandom random(seed);
    augmentation.change(image, random);
    return bytes_of(image);
  };
  EXPECT_EQ(made(5), made(5));
  EXPECT_NE(made(5), made(6));
}

TEST(ImageAugmentation, FlipsAsOftenAsAsked) {
  const std::string plain = bytes_of(gradient_image(4, 5));
  for (const double probability : {0.0, 0.25, 1.0}) {
    int flipped = 0;
    const ImageAugmentation augmentation({.flip_probability = probability});
    for (uint64_t seed = 0; seed < 1000; ++seed) {
      Image image = gradient_image(4, 5);
      ImageRandom random(seed);
      augmentation.change(image, random);
      flipped += bytes_of(image) != plain ? 1 : 0;
    }
    EXPECT_NEAR(flipped, 1000 * probability, probability == 0.25 ? 60 : 0);
  }
}

TEST(ImageAugmentation, RefusesOptionsOutOfRange) {
  EXPECT_THAT(error_of([] { ImageAugmentation({.size = 0}); }), HasSubstr("size 0"));
  EXPECT_THAT(error_of([] { ImageAugmentation({.scale = {0.5, 1.5}}); }), HasSubstr("scale from 0.5 to 1.5"));
  EXPECT_THAT(error_of([] { ImageAugmentation({.ratio = {2, 1}}); }), HasSubstr("ratio from 2 to 1"));
  EXPECT_THAT(
      error_of([] { ImageAugmentation({.flip_probability = std::numeric_limits<double>::quiet_NaN()}); }),
      HasSubstr("flip_probability nan"));
  EXPECT_THAT(error_of([] { ImageAugmentation({.color_jitter = {.hue = 0.6}}); }), HasSubstr("hue 0.6"));
  EXPECT_THAT(error_of([] { ImageAugmentation({.rand_augment = RandAugmentOptions{.magnitude = 31}}); }),
              HasSubstr("magnitude 31 is outside the 31 bins"));
}

TEST(ImageEvaluation, TakesTheMiddle) {
  const ImageEvaluation evaluation(224, 256);
  ImageRandom random(0);
  const ResizeGeometry geometry = evaluation.geometry(375, 500, random);
  EXPECT_EQ(geometry.height, 256);
  EXPECT_EQ(geometry.width, 341);
  EXPECT_EQ(geometry.window, (CropBox{16, 58, 224, 224}));  // 58.5 is rounded to even
  EXPECT_THAT(error_of([] { ImageEvaluation(224, 223); }),
              HasSubstr("the middle 224 of an image resized to 223"));
}

TEST(ImageNormalizer, WritesChannelsOneAfterAnother) {
  const ImageNormalizer normalizer({.mean = {0, 0.5F, 0}, .std = {1, 1, 2}});
  Image image(1, 2);
  for (uint8_t i = 0; i < 6; ++i) image.data()[i] = static_cast<uint8_t>(51 * i);
  std::vector<float> out(6);
  normalizer.write(image, out.data());
  EXPECT_EQ(out, (std::vector<float>{0, 0.6F, 0.2F - 0.5F, 0.8F - 0.5F, 0.2F, 0.5F}));
  EXPECT_THAT(error_of([] { ImageNormalizer({.std = {1, 0, 1}}); }), HasSubstr("channel 1"));
}

}  // namespace
}  // namespace mantissa::pipeline_test
