#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "mantissa/data/batch_memory.h"
#include "mantissa/data/dataset.h"
#include "mantissa/data/images/image_source.h"
#include "mantissa/data/images/pipeline.h"

namespace mantissa {

/// What becomes of an image that cannot be decoded.
enum class CorruptImages {
  kRefuse,  ///< get_batch() fails and names the image
  kSkip,  ///< a warning names the image, once, and its batch is smaller; it may be empty (Batch::is_empty())
};

struct ImageDatasetOptions {
  ImageNormalization normalization = {};
  CorruptImages corrupt = CorruptImages::kRefuse;
  /// Lets JPEG decode at 1/2, 1/4 or 1/8 of the size where the crop stays larger than the result. It is faster, and
  /// changes pixels by a few levels of 255 (docs/images.md).
  bool scaled_decoding = true;
};

/// Images that are decoded, changed and normalized when a batch is read.
///
/// Shapes:  data float32 [n, 3, size, size]; target int64 [n], the labels.
/// Only the rows of the crop are decoded. Random numbers come from the generator that the loader hands over, so equal seeds
/// give equal batches, whatever the number of workers.
/// Memory:  batches have that of earlier ones, which are dead (batch_memory.h).
/// Threads: several threads read at once; one call uses libtorch's threads, which a loader's worker has one of.
/// Errors:  of draw_batch(): without kSkip, c10::Error and c10::ValueError that name an image that cannot be read or decoded.
/// Example: image_dataset_test.cpp, ImageDatasetTest.ReadsAFolder.
class ImageDataset final : public Dataset {
 public:
  /// Errors: c10::ValueError for no source or no pipeline; those of ImageNormalizer.
  ImageDataset(std::shared_ptr<const ImageSource> source, std::shared_ptr<const ImagePipeline> pipeline,
               const ImageDatasetOptions& options = {});

  int64_t size() const override { return source_->size(); }
  /// Draws the same random numbers at every call.
  Batch get_batch(const at::Tensor& indices) const override;
  Batch draw_batch(const at::Tensor& indices, const at::Generator& generator) const override;
  const ImageSource& source() const { return *source_; }

 private:
  struct Scratch;
  /// Decodes an image to `out`. Returns "", or why an image is corrupt that is to be skipped.
  std::string read(int64_t index, uint64_t seed, Scratch& scratch, float* out) const;
  /// Warns of an image, once.
  void report(int64_t index, const std::string& why) const;

  std::shared_ptr<const ImageSource> source_;
  std::shared_ptr<const ImagePipeline> pipeline_;
  ImageDatasetOptions options_;
  ImageNormalizer normalizer_;
  BatchMemory memory_;
  mutable std::mutex mutex_;
  mutable std::set<int64_t> reported_;
};

}  // namespace mantissa
