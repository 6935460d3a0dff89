#include "mantissa/data/images/image_dataset.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "mantissa/data/images/decoder.h"

namespace mantissa {
namespace {

/// Returns the pixels that the geometry reads. A crop is all of its source; a filter without one reads what its window
/// needs.
CropBox pixels_of(const ResizeGeometry& geometry, int64_t height, int64_t width) {
  const ImageRegion& source = geometry.source;
  const PixelRange rows = pixels_read(source.top, source.height, height, geometry.height, geometry.window.top,
                                      geometry.window.height);
  const PixelRange columns = pixels_read(source.left, source.width, width, geometry.width,
                                         geometry.window.left, geometry.window.width);
  return {rows.first, columns.first, rows.count, columns.count};
}

CropBox whole_pixels(const ImageRegion& region) {
  return {static_cast<int64_t>(region.top), static_cast<int64_t>(region.left),
          static_cast<int64_t>(region.height), static_cast<int64_t>(region.width)};
}

/// Returns the geometry in the coordinates of the decoded part.
ResizeGeometry relative_to(const DecodedPart& part, ResizeGeometry geometry) {
  const auto shrink = static_cast<double>(part.shrink);
  ImageRegion& source = geometry.source;
  source = {(source.top - static_cast<double>(part.top)) / shrink,
            (source.left - static_cast<double>(part.left)) / shrink, source.height / shrink,
            source.width / shrink};
  return geometry;
}

}  // namespace

/// What a thread uses again for each image.
struct ImageDataset::Scratch {
  std::string bytes;
  Image decoded, resized;
  ImageResizer resizer;
};

ImageDataset::ImageDataset(std::shared_ptr<const ImageSource> source,
                           std::shared_ptr<const ImagePipeline> pipeline, const ImageDatasetOptions& options)
    : source_(std::move(source)),
      pipeline_(std::move(pipeline)),
      options_(options),
      normalizer_(options.normalization) {
  TORCH_CHECK_VALUE(source_ && pipeline_, "ImageDataset: no ", source_ ? "pipeline" : "source",
                    "; give images and what becomes of them");
}

std::string ImageDataset::read(int64_t index, uint64_t seed, Scratch& scratch, float* out) const {
  const std::string name = source_->name(index);
  ImageRandom random(seed);
  try {
    const auto decoder = open_image(source_->read(index, scratch.bytes), name);
    const ResizeGeometry geometry = pipeline_->geometry(decoder->height(), decoder->width(), random);
    const CropBox pixels = pipeline_->crops_first()
                               ? whole_pixels(geometry.source)
                               : pixels_of(geometry, decoder->height(), decoder->width());
    const double reduction = std::min(geometry.source.height / static_cast<double>(geometry.height),
                                      geometry.source.width / static_cast<double>(geometry.width));
    const auto max_shrink = options_.scaled_decoding ? static_cast<int64_t>(reduction) : int64_t{1};
    const DecodedPart part = decoder->decode(pixels, max_shrink, scratch.decoded);
    scratch.resizer.resize(scratch.decoded, relative_to(part, geometry), scratch.resized);
  } catch (const c10::Error& error) {
    if (options_.corrupt == CorruptImages::kRefuse) throw;
    return error.what_without_backtrace();
  }
  pipeline_->change(scratch.resized, random);
  normalizer_.write(scratch.resized, out);
  return {};
}

void ImageDataset::report(int64_t index, const std::string& why) const {
  const std::lock_guard lock(mutex_);
  if (reported_.insert(index).second) TORCH_WARN("an image is skipped: ", why);
}

Batch ImageDataset::get_batch(const at::Tensor& indices) const {
  return draw_batch(indices, at::detail::createCPUGenerator(0));
}

Batch ImageDataset::draw_batch(const at::Tensor& indices, const at::Generator& generator) const {
  check_indices(indices, size(), "ImageDataset");
  const at::Tensor row = indices.contiguous();
  const int64_t n = row.size(0), side = pipeline_->size(), floats = 3 * side * side;
  const uint64_t seed = at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  const at::Tensor data = memory_.take({n, 3, side, side}, at::kFloat);
  const at::Tensor target = at::empty({n}, at::TensorOptions().dtype(at::kLong).device(at::kCPU));
  const int64_t* const index = row.const_data_ptr<int64_t>();
  auto* const pixels = data.mutable_data_ptr<float>();
  auto* const label = target.mutable_data_ptr<int64_t>();
  std::vector<std::string> faults(static_cast<size_t>(n));
  at::parallel_for(0, n, 1, [&](int64_t begin, int64_t end) {
    Scratch scratch;
    for (int64_t i = begin; i < end; ++i) {
      label[i] = source_->label(index[i]);
      faults[static_cast<size_t>(i)] =
          read(index[i], seed + static_cast<uint64_t>(i), scratch, pixels + i * floats);
    }
  });
  // Only this thread reports, because threads have handlers of warnings of their own.
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < n; ++i) {
    const std::string& fault = faults[static_cast<size_t>(i)];
    fault.empty() ? kept.push_back(i) : report(index[i], fault);
  }
  if (std::ssize(kept) == n) return {data, target, {}};
  const at::Tensor rows = at::from_blob(kept.data(), {std::ssize(kept)}, at::kLong);
  return {data.index_select(0, rows), target.index_select(0, rows), {}};
}

}  // namespace mantissa
