#include "mantissa/data/cifar.h"

#include <string>

#include "cli/data/kinds.h"
#include "cli/fit_options.h"

namespace mantissa::cli {
namespace {

/// Returns the unsplit part of training images without augmentation.
std::shared_ptr<const Dataset> unchanged(const ByteImageDataset& images) {
  return std::make_shared<ByteImageDataset>(images.images(), images.target(), cifar_normalization());
}

Data data_of(const std::string& name, const Cifar& cifar) {
  return {
      .name = name,
      .train = cifar.train,
      .val = cifar.val,
      .input = {
          .kind = InputKind::kImages, .channels = 3, .height = 32, .width = 32, .classes = cifar.classes}};
}

Data load(const std::string& name, CifarKind kind, const std::string& path, const FitOptions& o) {
  ByteImageOptions training = cifar_augmentation();
  training.flip_probability = o.images.flip;
  const Cifar cifar = load_cifar(path, kind, training);
  Data data = data_of(name, cifar);
  if (data.val) return data;
  // Equal seeds split both alike, so that no image is in both parts.
  data.val = random_split(unchanged(*cifar.train), o.val_fraction, o.seed).second;
  data.train = random_split(data.train, o.val_fraction, o.seed).first;
  return data;
}

Data load_all(const std::string& name, CifarKind kind, const std::string& path) {
  Data data = data_of(name, load_cifar(path, kind, cifar_normalization()));
  if (!data.val) data.val = data.train;
  return data;
}

DataKind kind_of(const std::string& name, CifarKind kind) {
  return {.name = name,
          .argument = "DIR",
          .help = "the binary version",
          .input = InputKind::kImages,
          .load = [=](const std::string& path, const FitOptions& o) { return load(name, kind, path, o); },
          .load_all = [=](const std::string& path,
                          const FitOptions& /*o*/) { return load_all(name, kind, path); }};
}

}  // namespace

DataKind cifar10_kind() { return kind_of("cifar10", CifarKind::kCifar10); }
DataKind cifar100_kind() { return kind_of("cifar100", CifarKind::kCifar100); }

}  // namespace mantissa::cli
