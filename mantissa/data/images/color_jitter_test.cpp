#include "mantissa/data/images/color_jitter.h"

#include <gtest/gtest.h>

#include "mantissa/data/images/test_support_internal.h"

namespace mantissa::color_jitter_test {
namespace {

TEST(ColorJitter, ChangesNothingByDefault) {
  Image image = gradient_image(6, 8);
  ImageRandom random(1);
  ColorJitter().apply(image, random);
  EXPECT_EQ(bytes_of(image), bytes_of(gradient_image(6, 8)));
}

TEST(ColorJitter, EachStrengthChangesTheImage) {
  for (const ColorJitterOptions& options :
       {ColorJitterOptions{.brightness = 0.5}, {.contrast = 0.5}, {.saturation = 0.5}, {.hue = 0.4}}) {
    Image image = gradient_image(6, 8);
    ImageRandom random(1);
    ColorJitter(options).apply(image, random);
    EXPECT_NE(bytes_of(image), bytes_of(gradient_image(6, 8)));
  }
}

}  // namespace
}  // namespace mantissa::color_jitter_test
