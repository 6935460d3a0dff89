#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "mantissa/data/dataset.h"

namespace mantissa {

/// Reads an IDX file (the format of MNIST), plain or compressed with gzip.
///
/// Shapes:  as in the file, 1 to 8 dimensions, at most 2^31 - 1 elements; dtype uint8, int8, int16, int32,
///          float32 or float64, as in the file.
/// Memory:  the tensor; a gzip file is unpacked straight into it.
/// Errors:  c10::Error if the file cannot be read; c10::ValueError, naming the file, the expected and the
///          found value, for a wrong magic number, a truncated or overlong file, a corrupt gzip stream, or a
///          header that promises more than a file of this size can hold (which is checked before anything is
///          allocated).
/// Source:  Y. LeCun, C. Cortes, C. Burges, "The MNIST database", section "File formats".
at::Tensor read_idx(const std::filesystem::path& path);

/// Parses the bytes of an IDX file that is not compressed. `name` stands for the file in errors.
at::Tensor parse_idx(std::string_view bytes, const std::string& name);

/// The number of classes that labels of one byte can tell apart.
inline constexpr int64_t kMaxIdxClasses = 256;

/// Images with one class each, ready for training.
struct IdxDataset {
  /// Shapes: data float32 [n, 1, height, width] from 0 to 1; target int64 [n].
  std::shared_ptr<const TensorDataset> train;
  /// Null if the folder has no test part; random_split() can split one off.
  std::shared_ptr<const TensorDataset> val;
  /// The number of classes that was asked for. Otherwise the largest label + 1, but at least 10, so that a
  /// small part of a set of digits gives the same model as the whole set.
  int64_t classes = 10;
};

/// What load_idx_dataset() does with labels.
enum class IdxLabels { kRead, kIgnore };

/// Finds an image set's images and labels in a folder by MNIST's names. A pair is `PREFIXimages-idx3-ubyte`
/// and `PREFIXlabels-idx1-ubyte`, each plain or with .gz. A prefix that contains "train" marks the training
/// part, one with "t10k" or "test" the validation part; a single pair is the training part, whatever its
/// prefix. `path` may also be one images file, which is then used alone.
///
/// With IdxLabels::kIgnore, no labels are read or looked for, as for predictions: all labels are 0.
///
/// Numerics: pixels are divided by 255, or by 16 if no pixel of any part exceeds 16 (the digits).
/// Errors:   those of read_idx() and make_idx_dataset(); c10::ValueError if there is no folder, no pair, or
///           several pairs that are not one training and one validation part; all name the files.
IdxDataset load_idx_dataset(const std::filesystem::path& path, int64_t classes = 0,
                            IdxLabels labels = IdxLabels::kRead);

/// Returns whether load_idx_dataset() would find two parts in a folder: one to train on, and one to validate on. It reads no
/// file.
bool has_idx_val_part(const std::filesystem::path& folder);

/// Makes a dataset from images uint8 [n, height, width] and labels uint8 [n], scaled as in
/// load_idx_dataset().
/// Errors: c10::ValueError, beginning with `name`, for other shapes or dtypes, different counts, no images,
///         or a label >= `classes` (unless that is 0).
std::shared_ptr<const TensorDataset> make_idx_dataset(const at::Tensor& images, const at::Tensor& labels,
                                                      const std::string& name, int64_t classes = 0);

}  // namespace mantissa
