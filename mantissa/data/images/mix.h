#pragma once

#include <cstdint>

#include "mantissa/data/transform.h"

namespace mantissa {

struct MixOptions {
  int64_t num_classes = 0;
  /// The parameters of the Beta distributions that the shares of the mixed images come from; 0 switches one off. With both, half of
  /// the batches are mixed in each way.
  double mixup_alpha = 0, cutmix_alpha = 0;
};

/// Returns a transform that mixes every image of a batch with the one before it: mixup takes a weighted mean of the pixels,
/// CutMix replaces a rectangle. The targets become the shares of the classes (torchvision: v2.MixUp, v2.CutMix).
///
/// Shapes:  data float [n, channels, height, width]; target int64 [n] becomes float32 [n, num_classes].
/// Errors:  c10::ValueError for num_classes below 1, an alpha that is negative or not finite, or none of the two; from the
///          transform for other shapes, and a label that is num_classes or above.
/// Source:  Zhang et al. 2017, arXiv:1710.09412; Yun et al. 2019, arXiv:1905.04899.
/// Example: mix_test.cpp, Mix.CutMixReplacesARectangle.
Transform mix_images(const MixOptions& options);

}  // namespace mantissa
