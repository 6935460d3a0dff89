#include "mantissa/data/cifar.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

#include "cli/data/kinds.h"
#include "cli/fit_options.h"

namespace mantissa::cli {
namespace {

constexpr int64_t kSide = 32;  // pixels

/// Returns the unsplit part of training images without augmentation.
std::shared_ptr<const Dataset> unchanged(const ByteImageDataset& images) {
  return std::make_shared<ByteImageDataset>(images.images(), images.target(), cifar_normalization());
}

Data cifar_data(const std::string& name, const Cifar& cifar) {
  return {.name = name,
          .train = cifar.train,
          .val = cifar.val,
          .input = {.kind = InputKind::kImages,
                    .channels = 3,
                    .height = kSide,
                    .width = kSide,
                    .classes = cifar.classes},
          .is_augmented = true};
}

Data load_cifar_split(const std::string& name, CifarKind kind, const std::string& path, const FitOptions& o) {
  check_shift(o, kSide, kSide);
  ByteImageOptions training = cifar_augmentation();
  training.flip_probability = o.images.flip;
  training.padding = o.images.shift;
  const Cifar cifar = load_cifar(path, kind, training);
  Data data = cifar_data(name, cifar);
  if (data.val) return data;
  // Equal seeds split both alike, so that no image is in both parts.
  data.val = random_split(unchanged(*cifar.train), o.val_fraction, o.seed).second;
  data.train = random_split(data.train, o.val_fraction, o.seed).first;
  return data;
}

Data load_whole_cifar(const std::string& name, CifarKind kind, const std::string& path) {
  Data data = cifar_data(name, load_cifar(path, kind, cifar_normalization()));
  if (!data.val) data.val = data.train;
  return data;
}

bool has_test_file(CifarKind kind, const std::string& path) {
  std::error_code ignored;
  const char* const name = kind == CifarKind::kCifar10 ? "test_batch.bin" : "test.bin";
  return std::filesystem::exists(std::filesystem::path(path) / name, ignored);
}

DataKind cifar_kind(const std::string& name, CifarKind kind) {
  return {.name = name,
          .argument = "DIR",
          .help = "the binary version",
          .input = InputKind::kImages,
          .load = [=](const std::string& path,
                      const FitOptions& o) { return load_cifar_split(name, kind, path, o); },
          .load_all = [=](const std::string& path,
                          const FitOptions& /*o*/) { return load_whole_cifar(name, kind, path); },
          .has_val_part = [=](const std::string& path) { return has_test_file(kind, path); },
          .options = {"flip", "shift", "mixup", "cutmix"},
          .defaults = {{"shift", cifar_augmentation().padding}}};
}

}  // namespace

DataKind cifar10_kind() { return cifar_kind("cifar10", CifarKind::kCifar10); }
DataKind cifar100_kind() { return cifar_kind("cifar100", CifarKind::kCifar100); }

}  // namespace mantissa::cli
