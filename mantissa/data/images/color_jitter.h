#pragma once

#include "mantissa/data/images/image.h"
#include "mantissa/data/images/image_random.h"

namespace mantissa {

/// How far each property may change; 0 keeps it. A factor is drawn from 1 - x (at least 0) to 1 + x, for the hue a turn
/// from -x to x of the circle.
struct ColorJitterOptions {
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;
};

/// Changes brightness, contrast, saturation and hue at random, in random order (torchvision: ColorJitter).
/// Errors:  c10::ValueError from the constructor for a negative number, or one above 1e6, or a hue above 0.5.
/// Example: color_jitter_test.cpp, ColorJitter.ChangesNothingByDefault.
class ColorJitter {
 public:
  explicit ColorJitter(const ColorJitterOptions& options = {});
  void apply(Image& image, ImageRandom& random) const;

 private:
  ColorJitterOptions options_;
};

}  // namespace mantissa
