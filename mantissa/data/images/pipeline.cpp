#include "mantissa/data/images/pipeline.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <c10/util/Exception.h>

namespace mantissa {
namespace {

void check_range(const std::array<double, 2>& range, double highest, const char* what) {
  TORCH_CHECK_VALUE(range[0] > 0 && range[0] <= range[1] && range[1] <= highest, "ImageAugmentation: ", what,
                    " from ", range[0], " to ", range[1], " is no range above 0",
                    std::isfinite(highest) ? " and up to 1" : "", "; give {lowest, highest}");
}

/// Rounds halves to even, as Python's round() does.
int64_t rounded(double x) { return std::llrint(x); }

/// Takes a crop as the whole image, resized to a square.
ResizeGeometry stretched(const CropBox& box, int64_t size) {
  return {{static_cast<double>(box.top), static_cast<double>(box.left), static_cast<double>(box.height),
           static_cast<double>(box.width)},
          size,
          size,
          {0, 0, size, size},
          filters_columns_first(box.height, box.width, size, size)};
}

}  // namespace

ImageAugmentation::ImageAugmentation(const ImageAugmentationOptions& options)
    : options_(options), color_jitter_(options.color_jitter) {
  TORCH_CHECK_VALUE(options.size >= 1, "ImageAugmentation: size ", options.size,
                    " makes no image; give 1 or more");
  check_range(options.scale, 1.0, "scale");
  check_range(options.ratio, std::numeric_limits<double>::infinity(), "ratio");
  TORCH_CHECK_VALUE(options.flip_probability >= 0 && options.flip_probability <= 1,
                    "ImageAugmentation: flip_probability ", options.flip_probability,
                    " is no probability; give 0 to 1");
  if (options.rand_augment) rand_augment_.emplace(*options.rand_augment);
}

CropBox ImageAugmentation::crop(int64_t height, int64_t width, ImageRandom& random) const {
  const auto area = static_cast<double>(height * width);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * random.uniform(options_.scale[0], options_.scale[1]);
    const double ratio = std::exp(random.uniform(std::log(options_.ratio[0]), std::log(options_.ratio[1])));
    const int64_t w = rounded(std::sqrt(target * ratio)), h = rounded(std::sqrt(target / ratio));
    if (w < 1 || w > width || h < 1 || h > height) continue;
    const int64_t top = random.below(height - h + 1);
    return {top, random.below(width - w + 1), h, w};
  }
  // The largest crop in the middle whose ratio is allowed.
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  int64_t w = width, h = height;
  if (ratio < options_.ratio[0])
    h = std::clamp<int64_t>(rounded(static_cast<double>(w) / options_.ratio[0]), 1, height);
  else if (ratio > options_.ratio[1])
    w = std::clamp<int64_t>(rounded(static_cast<double>(h) * options_.ratio[1]), 1, width);
  return {(height - h) / 2, (width - w) / 2, h, w};
}

ResizeGeometry ImageAugmentation::geometry(int64_t height, int64_t width, ImageRandom& random) const {
  return stretched(crop(height, width, random), options_.size);
}

void ImageAugmentation::change(Image& image, ImageRandom& random) const {
  if (random.chance(options_.flip_probability)) flip_horizontally(image);
  if (rand_augment_) rand_augment_->apply(image, random);
  color_jitter_.apply(image, random);
}

ImageEvaluation::ImageEvaluation(int64_t size, int64_t resize) : size_(size), resize_(resize) {
  TORCH_CHECK_VALUE(size >= 1 && size <= resize, "ImageEvaluation: the middle ", size,
                    " of an image resized to ", resize,
                    " cannot be taken; give a size from 1 to the resized side");
}

ResizeGeometry ImageEvaluation::geometry(int64_t height, int64_t width, ImageRandom& /*random*/) const {
  const bool tall = width <= height;
  const int64_t longer = tall ? resize_ * height / width : resize_ * width / height;
  const int64_t h = tall ? longer : resize_, w = tall ? resize_ : longer;
  const auto middle = [&](int64_t side) { return rounded(static_cast<double>(side - size_) / 2.0); };
  return {{0, 0, static_cast<double>(height), static_cast<double>(width)},
          h,
          w,
          {middle(h), middle(w), size_, size_},
          filters_columns_first(height, width, h, w)};
}

void flip_horizontally(Image& image) {
  for (int64_t y = 0; y < image.height(); ++y) {
    uint8_t* left = image.row(y);
    for (uint8_t* right = left + image.row_bytes() - 3; left < right; left += 3, right -= 3)
      std::swap_ranges(left, left + 3, right);
  }
}

ImageNormalizer::ImageNormalizer(const ImageNormalization& normalization) {
  for (size_t channel = 0; channel < 3; ++channel) {
    const float mean = normalization.mean[channel], std = normalization.std[channel];
    TORCH_CHECK_VALUE(std::isfinite(mean) && std::isfinite(std) && std != 0, "ImageNormalizer: channel ",
                      channel, " has mean ", mean, " and std ", std,
                      "; give finite numbers, and a std that is not 0");
    for (size_t pixel = 0; pixel < 256; ++pixel)
      table_[channel][pixel] = (static_cast<float>(pixel) / 255.0F - mean) / std;
  }
}

void ImageNormalizer::write(const Image& image, float* out) const {
  const int64_t pixels = image.height() * image.width();
  const uint8_t* in = image.data();
  float *red = out, *green = out + pixels, *blue = out + 2 * pixels;
  for (int64_t i = 0; i < pixels; ++i, in += 3) {
    red[i] = table_[0][in[0]];
    green[i] = table_[1][in[1]];
    blue[i] = table_[2][in[2]];
  }
}

}  // namespace mantissa
