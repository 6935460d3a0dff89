#pragma once

#include <cstdint>
#include <string>

namespace mantissa::cli {

/// How images are read and changed: the options of the group Images (options/images.cpp).
struct ImageOptions {
  int64_t size = 0;                 ///< pixels of each side; 0: 224
  double crop_scale = 0, flip = 0;  ///< see ImageAugmentationOptions
  int64_t shift = 0;                ///< pixels
  double color_jitter = 0;          ///< of brightness, contrast and saturation
  int64_t rand_augment = 0;         ///< the magnitude; 0: none
  double mixup = 0, cutmix = 0;     ///< see MixOptions
  std::string corrupt;              ///< "refuse" or "skip"
  bool exact_decoding = false;
};

}  // namespace mantissa::cli
