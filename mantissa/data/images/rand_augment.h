#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mantissa/data/images/image.h"
#include "mantissa/data/images/image_random.h"

namespace mantissa {

struct RandAugmentOptions {
  int64_t num_ops = 2;    ///< operations for each image
  int64_t magnitude = 9;  ///< their strength, 0 to num_magnitude_bins - 1
  int64_t num_magnitude_bins = 31;
};

/// Applies operations that are drawn from 14, all with the same strength (torchvision: RandAugment, with nearest pixels
/// and black for what comes from outside).
/// Errors:  c10::ValueError from the constructor for a negative num_ops, fewer than 2 bins, or a magnitude outside them.
/// Source:  Cubuk et al. 2019, arXiv:1909.13719.
/// Example: rand_augment_test.cpp, RandAugment.DrawsEveryOperation.
class RandAugment {
 public:
  explicit RandAugment(const RandAugmentOptions& options = {});
  void apply(Image& image, ImageRandom& random) const;

  /// The names of the operations, which are torchvision's.
  static const std::vector<std::string>& operations();
  /// Applies one operation; `negative` mirrors the effect of those that have a direction.
  void apply(size_t operation, bool negative, Image& image) const;

 private:
  RandAugmentOptions options_;
};

}  // namespace mantissa
