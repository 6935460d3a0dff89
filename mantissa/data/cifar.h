#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "mantissa/data/images/byte_images.h"

namespace mantissa {

enum class CifarKind { kCifar10, kCifar100 };

/// Images with one label each, from a file of records.
struct CifarRecords {
  at::Tensor images;  ///< uint8 [n, 3, 32, 32]
  at::Tensor labels;  ///< int64 [n]; of CIFAR-100 the fine ones
};

/// Parses the binary form: a record has a label (CIFAR-100: a coarse and a fine one) and 3072 pixels. `name` begins the errors.
/// Errors: c10::ValueError for no record, a size that is no number of records, and a label above 9 (or 99).
/// Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; the data set's page.
CifarRecords parse_cifar(std::string_view bytes, CifarKind kind, const std::string& name);

/// The mean and std of CIFAR-10's training images, which are used for CIFAR-100, too.
ByteImageOptions cifar_normalization();
/// The same with the usual augmentation: images are padded by 4 pixels, cropped at random and mirrored half of the time.
ByteImageOptions cifar_augmentation();

struct Cifar {
  /// `val` is null without a test file.
  std::shared_ptr<const ByteImageDataset> train, val;
  int64_t classes = 10;
};

/// Reads CIFAR-10's data_batch_1.bin to data_batch_5.bin, as many as there are, and test_batch.bin, or CIFAR-100's
/// train.bin and test.bin.
/// Memory: 3 KB for each image, and twice that while it is read.
/// Errors: those of parse_cifar(), which name the file; c10::Error for a file that cannot be read; c10::ValueError for a folder without
///         training files.
Cifar load_cifar(const std::filesystem::path& folder, CifarKind kind,
                 const ByteImageOptions& training = cifar_augmentation());

}  // namespace mantissa
