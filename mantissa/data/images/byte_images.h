#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/data/batch_memory.h"
#include "mantissa/data/dataset.h"

namespace mantissa {

struct ByteImageOptions {
  /// What is subtracted from each channel of pixels from 0 to 1, and what it is divided by; empty: 0 and 1.
  std::vector<float> mean = {}, std = {};
  /// Shifts each image by up to `padding` pixels in both directions at random, as torchvision's RandomCrop with padding
  /// does. Pixels from outside are 0 before normalization.
  int64_t padding = 0;
  /// Probability with which an image is mirrored.
  double flip_probability = 0;
};

/// Small images that are all in memory, as bytes: CIFAR, MNIST.
///
/// Shapes:   `images` uint8 [n, channels, height, width], `target` [n] of any dtype; a batch has data float32 of the images' shape.
/// Numerics: (pixel / 255 - mean) / std, each operation rounded, as torchvision's ToTensor and Normalize.
/// Memory:   1 byte per value; a batch reuses the memory of an earlier one that is no longer in use.
/// Errors:   c10::ValueError for other shapes, no image, numbers of channels that differ, a std of 0, a padding below 0 or
///           of the image's size and more, and a probability outside 0 to 1.
/// Example:  byte_images_test.cpp, ByteImages.AreMovedAndMirrored
class ByteImageDataset final : public Dataset {
 public:
  ByteImageDataset(const at::Tensor& images, const at::Tensor& target, const ByteImageOptions& options = {});

  int64_t size() const override { return images_.size(0); }
  /// Draws the same random numbers at every call.
  Batch get_batch(const at::Tensor& indices) const override;
  Batch draw_batch(const at::Tensor& indices, const at::Generator& generator) const override;
  const at::Tensor& images() const { return images_; }
  const at::Tensor& target() const { return target_; }

 private:
  void write(int64_t index, uint64_t seed, float* out) const;

  at::Tensor images_, target_;
  ByteImageOptions options_;
  std::vector<float> values_;  ///< the normalized value of each byte, per channel
  BatchMemory memory_;
};

}  // namespace mantissa
