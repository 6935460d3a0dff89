#pragma once

#include <cstdint>

#include "mantissa/data/transform.h"

namespace mantissa {

/// Returns a transform that moves each image of a batch by up to `pixels` to any side. What comes in from outside is 0
/// (torchvision: RandomCrop of the image's size, with `pixels` of padding).
///
/// Shapes:  data [n, channels, height, width] of any dtype, on the CPU; targets stay as they are.
/// Errors:  c10::ValueError for `pixels` below 1; from the transform for other shapes, and for images with a side of at most `pixels`.
/// Example: shift_test.cpp, Shift.MovesEachImageByItself.
Transform shift_images(int64_t pixels);

}  // namespace mantissa
