#include "mantissa/data/cifar.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "mantissa/data/read_file_internal.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPixels = int64_t{3} * 32 * 32;

int64_t labels_of(CifarKind kind) { return kind == CifarKind::kCifar10 ? 1 : 2; }
int64_t classes_of(CifarKind kind) { return kind == CifarKind::kCifar10 ? 10 : 100; }

/// Reads those of the files that are there, one after another.
CifarRecords read_all(const fs::path& folder, const std::vector<std::string>& names, CifarKind kind) {
  std::vector<at::Tensor> images, labels;
  for (const std::string& name : names) {
    std::error_code ignored;
    if (!fs::exists(folder / name, ignored)) continue;
    CifarRecords part = parse_cifar(read_file(folder / name, "CIFAR file"), kind, (folder / name).string());
    images.push_back(std::move(part.images));
    labels.push_back(std::move(part.labels));
  }
  if (images.empty()) return {};
  return {at::cat(images), at::cat(labels)};
}

}  // namespace

CifarRecords parse_cifar(std::string_view bytes, CifarKind kind, const std::string& name) {
  const int64_t record = labels_of(kind) + kPixels, size = std::ssize(bytes), count = size / record;
  TORCH_CHECK_VALUE(count > 0 && size % record == 0, "'", name, "' has ", size,
                    " bytes, which are no records of ", record,
                    " bytes; get the binary version of the data set again");
  CifarRecords records{at::empty({count, 3, 32, 32}, at::TensorOptions(at::kByte).device(at::kCPU)),
                       at::empty({count}, at::TensorOptions(at::kLong).device(at::kCPU))};
  auto* pixels = records.images.mutable_data_ptr<uint8_t>();
  auto* label = records.labels.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i, pixels += kPixels) {
    const std::string_view each = bytes.substr(static_cast<size_t>(i * record), static_cast<size_t>(record));
    label[i] = static_cast<uint8_t>(each[static_cast<size_t>(labels_of(kind) - 1)]);
    TORCH_CHECK_VALUE(label[i] < classes_of(kind), "'", name, "': image ", i, " has the label ", label[i],
                      ", and there are ", classes_of(kind),
                      " classes; name the data set that the file belongs to");
    std::copy_n(each.data() + labels_of(kind), kPixels, pixels);
  }
  return records;
}

ByteImageOptions cifar_normalization() {
  return {.mean = {0.4914F, 0.4822F, 0.4465F}, .std = {0.2470F, 0.2435F, 0.2616F}};
}

ByteImageOptions cifar_augmentation() {
  ByteImageOptions options = cifar_normalization();
  options.padding = 4;
  options.flip_probability = 0.5;
  return options;
}

Cifar load_cifar(const fs::path& folder, CifarKind kind, const ByteImageOptions& training) {
  const bool is_10 = kind == CifarKind::kCifar10;
  const std::vector<std::string> names =
      is_10 ? std::vector<std::string>{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                       "data_batch_4.bin", "data_batch_5.bin"}
            : std::vector<std::string>{"train.bin"};
  const CifarRecords train = read_all(folder, names, kind),
                     test = read_all(folder, {is_10 ? "test_batch.bin" : "test.bin"}, kind);
  TORCH_CHECK_VALUE(train.images.defined(), "load_cifar: '", folder.string(), "' has no ", names[0],
                    "; give the folder of the binary version of CIFAR-", is_10 ? "10" : "100");
  Cifar cifar{std::make_shared<ByteImageDataset>(train.images, train.labels, training), nullptr,
              classes_of(kind)};
  if (test.images.defined()) {
    ByteImageOptions unchanged = training;
    unchanged.padding = 0;
    unchanged.flip_probability = 0;
    cifar.val = std::make_shared<ByteImageDataset>(test.images, test.labels, unchanged);
  }
  return cifar;
}

}  // namespace mantissa
