#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "mantissa/data/dataset.h"

namespace mantissa {

/// Reads an IDX file (the format of MNIST), plain or gzip'd.
///
/// Shapes:  as the file says, 1 to 8 dimensions, at most 2^31 - 1 elements; dtype uint8, int8, int16, int32,
///          float32 or float64 as the file says.
/// Memory:  the tensor; a gzip'd file is unpacked straight into it.
/// Errors:  c10::Error if the file cannot be read; c10::ValueError, naming the file, what was expected and
///          what was found, for a wrong magic number, a truncated or overlong file, a corrupt gzip stream, or
///          a header that promises more than a file of this size can hold (which is seen before anything is
///          allocated).
/// Source:  Y. LeCun, C. Cortes, C. Burges, "The MNIST database", section "File formats".
at::Tensor read_idx(const std::filesystem::path& path);

/// The same from memory, not gzip'd. `name` stands for the file in errors.
at::Tensor parse_idx(std::string_view bytes, const std::string& name);

/// Images with a class each, ready for training.
struct IdxDataset {
  /// Shapes: data float32 [n, 1, height, width] from 0 to 1; target int64 [n].
  std::shared_ptr<const TensorDataset> train;
  /// Null if the folder has no test part: split it off with random_split().
  std::shared_ptr<const TensorDataset> val;
  /// As asked for; else the largest label + 1, and at least 10, so that a small part of a set of digits makes
  /// the same model as all of it.
  int64_t classes = 10;
};

/// Finds the images and labels of an image set under MNIST's names in a folder. A pair is
/// `PREFIXimages-idx3-ubyte` with `PREFIXlabels-idx1-ubyte`, each plain or with .gz. A prefix that has
/// "train" in it is the training part, one with "t10k" or "test" the validation part; a pair that stands
/// alone is the training part, whatever its prefix. Instead of the folder, `path` may be one images file,
/// which is then taken alone.
///
/// Numerics: pixels are divided by 255, or by 16 if no pixel of any part exceeds 16 (the digits).
/// Errors:   those of read_idx() and make_idx_dataset(); c10::ValueError if there is no folder, no pair, or
///           several pairs of which it is not clear which one is meant; all name the files.
IdxDataset load_idx_dataset(const std::filesystem::path& path, int64_t classes = 0);

/// A dataset of images uint8 [n, height, width] and labels uint8 [n], scaled as load_idx_dataset() does.
/// Errors: c10::ValueError, beginning with `name`, for other shapes or dtypes, counts that differ, no images
///         at all, or a label >= `classes` (unless that is 0).
std::shared_ptr<const TensorDataset> make_idx_dataset(const at::Tensor& images, const at::Tensor& labels,
                                                      const std::string& name, int64_t classes = 0);

}  // namespace mantissa
