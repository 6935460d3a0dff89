#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "mantissa/data/images/color_jitter.h"
#include "mantissa/data/images/image.h"
#include "mantissa/data/images/image_random.h"
#include "mantissa/data/images/rand_augment.h"
#include "mantissa/data/images/resize.h"

namespace mantissa {

/// What becomes of an image between its file and the batch: which part of it is taken, and how its pixels change.
///
/// Threads: several threads use one pipeline at once.
class ImagePipeline {
 public:
  virtual ~ImagePipeline() = default;
  /// Height and width of the result.
  virtual int64_t size() const = 0;
  /// Decides which part of an image of this size is taken, before any pixel is decoded. `window` has size() rows and
  /// columns.
  virtual ResizeGeometry geometry(int64_t height, int64_t width, ImageRandom& random) const = 0;
  /// True if the pixels outside of the geometry's source do not exist for the filter, as if the image had been cropped
  /// first.
  virtual bool crops_first() const = 0;
  /// Changes the pixels of the resized image.
  virtual void change(Image& /*image*/, ImageRandom& /*random*/) const {}
};

struct ImageAugmentationOptions {
  int64_t size = 224;
  /// The share of the image's area that the crop takes, and width / height of the crop: {lowest, highest}.
  std::array<double, 2> scale{0.08, 1.0}, ratio{3.0 / 4.0, 4.0 / 3.0};
  double flip_probability = 0.5;
  ColorJitterOptions color_jitter = {};
  std::optional<RandAugmentOptions> rand_augment = {};
};

/// For training: a random crop is resized, and flipped half of the time; then RandAugment and colour jitter, if asked for
/// (torchvision: RandomResizedCrop, RandomHorizontalFlip, RandAugment, ColorJitter).
/// Errors:  c10::ValueError for a size below 1, ranges that are empty or outside (0, 1] for `scale`, probabilities
///          outside 0 to 1; those of ColorJitter and RandAugment.
/// Example: pipeline_test.cpp, ImageAugmentation.CropsAreWithinTheImage.
class ImageAugmentation final : public ImagePipeline {
 public:
  explicit ImageAugmentation(const ImageAugmentationOptions& options = {});
  int64_t size() const override { return options_.size; }
  ResizeGeometry geometry(int64_t height, int64_t width, ImageRandom& random) const override;
  bool crops_first() const override { return true; }
  void change(Image& image, ImageRandom& random) const override;

 private:
  CropBox crop(int64_t height, int64_t width, ImageRandom& random) const;

  ImageAugmentationOptions options_;
  ColorJitter color_jitter_;
  std::optional<RandAugment> rand_augment_;
};

/// For validation: the shorter side is resized to `resize` pixels, and the middle is taken (torchvision: Resize,
/// CenterCrop). Draws no random numbers.
/// Errors: c10::ValueError for a size below 1, or above `resize`.
class ImageEvaluation final : public ImagePipeline {
 public:
  explicit ImageEvaluation(int64_t size = 224, int64_t resize = 256);
  int64_t size() const override { return size_; }
  ResizeGeometry geometry(int64_t height, int64_t width, ImageRandom& random) const override;
  bool crops_first() const override { return false; }

 private:
  int64_t size_, resize_;
};

/// Mirrors an image, left to right.
void flip_horizontally(Image& image);

/// What is subtracted from each channel, and what it is divided by, for pixels from 0 to 1. The defaults are ImageNet's.
struct ImageNormalization {
  std::array<float, 3> mean{0.485F, 0.456F, 0.406F}, std{0.229F, 0.224F, 0.225F};
};

/// Writes uint8 [height, width, 3] as float32 [3, height, width]: (pixel / 255 - mean) / std, each operation rounded
/// (torchvision: ToTensor, Normalize; equal bits).
/// Errors: c10::ValueError from the constructor for a `std` that is 0 or not finite.
class ImageNormalizer {
 public:
  explicit ImageNormalizer(const ImageNormalization& normalization = {});
  void write(const Image& image, float* out) const;

 private:
  std::array<std::array<float, 256>, 3> table_{};
};

}  // namespace mantissa
