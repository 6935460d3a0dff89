#pragma once

#include <cstdint>

#include "mantissa/data/transform.h"

namespace mantissa {

struct MixOptions {
  /// The number of classes. It must be set.
  int64_t num_classes = 0;
  /// The share of each image is drawn from a Beta(alpha, alpha) distribution. An alpha of 0 switches that method off.
  /// If both are above 0, each batch is mixed by one of them, chosen at random with equal chances.
  double mixup_alpha = 0, cutmix_alpha = 0;
};

/// Returns a transform that mixes every image of a batch with the image before it (the first one with the last).
/// Mixup takes a weighted mean of the pixels. CutMix replaces a rectangle. Each target becomes a vector with the
/// share of each class (torchvision: v2.MixUp, v2.CutMix).
///
/// Shapes:  data float [n, channels, height, width]; target int64 [n] becomes float32 [n, num_classes].
/// Errors:  c10::ValueError if num_classes is below 1, if an alpha is negative or not finite, or if both alphas are
///          0. The transform throws it for other shapes, and c10::Error for a label that is not from 0 to
///          num_classes - 1.
/// Source:  Zhang et al. 2017, arXiv:1710.09412; Yun et al. 2019, arXiv:1905.04899.
/// Example: mix_test.cpp, Mix.CutMixReplacesARectangle.
Transform mix_images(const MixOptions& options);

}  // namespace mantissa
