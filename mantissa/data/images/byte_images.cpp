#include "mantissa/data/images/byte_images.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

#include "mantissa/data/images/image_random.h"

namespace mantissa {
namespace {

constexpr size_t kBytes = 256;

void check(const at::Tensor& images, const at::Tensor& target, const ByteImageOptions& options) {
  TORCH_CHECK_VALUE(images.defined() && images.dim() == 4 && images.scalar_type() == at::kByte &&
                        images.is_cpu() && images.numel() > 0,
                    "ByteImageDataset: images are uint8 [n, channels, height, width] on the CPU, not ",
                    images.defined() ? c10::str(images.scalar_type(), ' ', images.sizes()) : "undefined");
  TORCH_CHECK_VALUE(target.defined() && target.dim() > 0 && target.size(0) == images.size(0),
                    "ByteImageDataset: ", images.size(0), " images have ",
                    target.defined() && target.dim() > 0 ? target.size(0) : 0, " targets; give one for each");
  for (const auto* const numbers : {&options.mean, &options.std})
    TORCH_CHECK_VALUE(numbers->empty() || std::ssize(*numbers) == images.size(1),
                      "ByteImageDataset: ", numbers->size(), " numbers for ", images.size(1),
                      " channels; give a mean and a std for each");
  TORCH_CHECK_VALUE(
      std::all_of(options.mean.begin(), options.mean.end(), [](float mean) { return std::isfinite(mean); }),
      "ByteImageDataset: a mean is not finite; give what is subtracted from pixels");
  TORCH_CHECK_VALUE(std::all_of(options.std.begin(), options.std.end(),
                                [](float std) { return std != 0 && std::isfinite(std); }),
                    "ByteImageDataset: a std is 0 or not finite; give what pixels are divided by");
  TORCH_CHECK_VALUE(options.padding >= 0 && options.padding < std::min(images.size(2), images.size(3)),
                    "ByteImageDataset: a padding of ", options.padding, " for images of ", images.size(2),
                    " x ", images.size(3), " pixels; give 0 or more, and less than their sides");
  TORCH_CHECK_VALUE(options.flip_probability >= 0 && options.flip_probability <= 1,
                    "ByteImageDataset: a probability of ", options.flip_probability,
                    "; give one from 0 to 1");
}

}  // namespace

ByteImageDataset::ByteImageDataset(const at::Tensor& images, const at::Tensor& target,
                                   const ByteImageOptions& options)
    : options_(options) {
  check(images, target, options);
  images_ = images.contiguous();
  target_ = target.contiguous();
  for (size_t channel = 0; channel < static_cast<size_t>(images_.size(1)); ++channel)
    for (size_t byte = 0; byte < kBytes; ++byte) {
      const float value = static_cast<float>(byte) / 255.0F,
                  mean = options.mean.empty() ? 0.0F : options.mean[channel],
                  std = options.std.empty() ? 1.0F : options.std[channel];
      values_.push_back((value - mean) / std);
    }
}

Batch ByteImageDataset::get_batch(const at::Tensor& indices) const {
  return draw_batch(indices, at::detail::createCPUGenerator(0));
}

Batch ByteImageDataset::draw_batch(const at::Tensor& indices, const at::Generator& generator) const {
  check_indices(indices, size(), "ByteImageDataset");
  const at::Tensor row = indices.contiguous();
  const auto* const index = row.const_data_ptr<int64_t>();
  const int64_t n = row.numel(), values = images_.numel() / size();
  at::DimVector sizes(images_.sizes());
  sizes[0] = n;
  const at::Tensor data = memory_.take(sizes, at::kFloat);
  const uint64_t seed = at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  auto* const out = data.mutable_data_ptr<float>();
  for (int64_t i = 0; i < n; ++i) write(index[i], seed + static_cast<uint64_t>(i), out + i * values);
  return {data, target_.index_select(0, row), {}};
}

void ByteImageDataset::write(int64_t index, uint64_t seed, float* out) const {
  ImageRandom random(seed);
  const int64_t channels = images_.size(1), height = images_.size(2), width = images_.size(3),
                pad = options_.padding;
  const int64_t down = pad > 0 ? random.below(2 * pad + 1) - pad : 0,
                right = pad > 0 ? random.below(2 * pad + 1) - pad : 0;
  const bool mirrors = options_.flip_probability > 0 && random.chance(options_.flip_probability);
  const uint8_t* const image = images_.const_data_ptr<uint8_t>() + index * channels * height * width;
  for (int64_t channel = 0; channel < channels; ++channel) {
    const float* const value = values_.data() + static_cast<size_t>(channel) * kBytes;
    for (int64_t y = 0; y < height; ++y, out += width) {
      const int64_t from = y + down;
      if (from < 0 || from >= height) {
        std::fill(out, out + width, value[0]);
        continue;
      }
      const uint8_t* const pixels = image + (channel * height + from) * width;
      for (int64_t x = 0; x < width; ++x) {
        const int64_t column = x + right;
        out[mirrors ? width - 1 - x : x] = column < 0 || column >= width ? value[0] : value[pixels[column]];
      }
    }
  }
}

}  // namespace mantissa
