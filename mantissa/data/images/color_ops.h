#pragma once

#include <cstdint>

#include "mantissa/data/images/image.h"

namespace mantissa {

// Pillow's operations on colours, in place. They round as Pillow does: equal bits.

/// Multiplies every channel (ImageEnhance.Brightness). Factor 1 changes nothing; 0 gives black.
void adjust_brightness(Image& image, double factor);
/// Moves every channel away from the mean of the grey image (ImageEnhance.Contrast). Factor 0 gives grey.
void adjust_contrast(Image& image, double factor);
/// Moves every pixel away from its grey (ImageEnhance.Color). Factor 0 gives a grey image.
void adjust_saturation(Image& image, double factor);
/// Turns the hue by `factor` of the circle, -0.5 to 0.5 (torchvision: adjust_hue of a PIL image).
void adjust_hue(Image& image, double factor);
/// Moves every pixel away from the smoothed image (ImageEnhance.Sharpness). Factor 0 gives the smoothed image.
void adjust_sharpness(Image& image, double factor);
/// Keeps the upper `bits` bits of every channel, 0 to 8.
void posterize(Image& image, int64_t bits);
/// Inverts every channel that is `threshold` or above.
void solarize(Image& image, double threshold);
/// Stretches each channel to the whole range.
void autocontrast(Image& image);
/// Makes the histogram of each channel even.
void equalize(Image& image);

/// A map from the place of a pixel in the result to its place in the image, x' = a x + b y + c, y' = d x + e y + f.
struct AffineMap {
  double a = 1, b = 0, c = 0, d = 0, e = 1, f = 0;
};
/// Takes the nearest pixel for each one of the result, and black outside of the image.
/// Memory: a second image.
void transform_affine(Image& image, const AffineMap& map);
/// Turns the image by `degrees`, against the clock, about its middle, with the nearest pixels and black corners.
void rotate(Image& image, double degrees);

}  // namespace mantissa
