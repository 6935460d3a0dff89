#include <algorithm>
#include <map>
#include <system_error>
#include <vector>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/data/idx.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kImages = "images-idx3-ubyte", kLabels = "labels-idx1-ubyte", kGzip = ".gz";
constexpr double kDigitsMax = 16, kByteMax = 255;

/// Sets `prefix` to the part of `file` before `kind`, if it ends with that, with or without .gz.
bool has_prefix(std::string_view file, std::string_view kind, std::string& prefix) {
  if (file.ends_with(kGzip)) file.remove_suffix(kGzip.size());
  if (!file.ends_with(kind)) return false;
  prefix = file.substr(0, file.size() - kind.size());
  return true;
}

struct Pair {
  std::string prefix;
  fs::path images, labels;
};

/// Finds the labels beside `images`, if they are read; a plain file is preferred to a gzip file.
Pair with_labels(const fs::path& images, const std::string& prefix, IdxLabels wanted) {
  if (wanted == IdxLabels::kIgnore) return {prefix, images, {}};
  const fs::path labels = images.parent_path() / (prefix + std::string(kLabels));
  const fs::path gzip = labels.string() + std::string(kGzip);
  std::error_code ignored;
  const bool plain = fs::exists(labels, ignored);
  TORCH_CHECK_VALUE(plain || fs::exists(gzip, ignored), "load_idx_dataset: '", images.string(),
                    "' has no labels: neither '", labels.string(), "' nor '", gzip.filename().string(),
                    "' exists; put them beside the images");
  return {prefix, images, plain ? labels : gzip};
}

/// Returns the images files of a folder by their prefixes; a plain file is preferred to a gzip file.
std::map<std::string, fs::path> find_images(const fs::path& folder, std::error_code& error) {
  std::map<std::string, fs::path> images;
  std::string prefix;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string file = entry.path().filename().string();
    if (!has_prefix(file, kImages, prefix)) continue;
    const bool plain = !file.ends_with(kGzip);
    if (plain || !images.contains(prefix)) images[prefix] = entry.path();
  }
  return images;
}

std::vector<Pair> find_pairs(const fs::path& path, IdxLabels labels) {
  std::string prefix;
  std::error_code error;
  if (fs::is_regular_file(path, error)) {
    TORCH_CHECK_VALUE(has_prefix(path.filename().string(), kImages, prefix), "load_idx_dataset: '",
                      path.string(), "' is not named PREFIX", kImages,
                      "[.gz]; rename it, or give the folder");
    return {with_labels(path, prefix, labels)};
  }
  const std::map<std::string, fs::path> images = find_images(path, error);
  TORCH_CHECK_VALUE(!error, "load_idx_dataset: cannot open folder '", path.string(), "': ", error.message(),
                    "; give a folder that holds PREFIX", kImages, "[.gz] and PREFIX", kLabels, "[.gz]");
  TORCH_CHECK_VALUE(!images.empty(), "load_idx_dataset: no file PREFIX", kImages, "[.gz] in folder '",
                    path.string(), "'; put the images and PREFIX", kLabels, "[.gz] there");
  std::vector<Pair> pairs;
  for (const auto& [name, file] : images) pairs.push_back(with_labels(file, name, labels));
  return pairs;
}

bool is_test(const Pair& pair) {
  return pair.prefix.find("t10k") != std::string::npos || pair.prefix.find("test") != std::string::npos;
}
bool is_train(const Pair& pair) { return pair.prefix.find("train") != std::string::npos; }

struct Part {
  at::Tensor images, labels;
  std::string images_name, labels_name;
};

Part read_part(const Pair& pair) {
  Part part{read_idx(pair.images), {}, pair.images.string(), pair.labels.string()};
  if (!pair.labels.empty())
    part.labels = read_idx(pair.labels);
  else
    part.labels = at::zeros({part.images.size(0)}, at::TensorOptions(at::kByte).device(at::kCPU));
  return part;
}

void check(const Part& part, int64_t classes) {
  const auto& [images, labels, images_name, labels_name] = part;
  TORCH_CHECK_VALUE(images.dim() == 3 && images.scalar_type() == at::kByte, images_name,
                    ": images must be uint8 of 3 dimensions (count, height, width), but are ",
                    images.scalar_type(), " ", images.sizes(), "; check that the file holds images");
  TORCH_CHECK_VALUE(labels.dim() == 1 && labels.scalar_type() == at::kByte, labels_name,
                    ": labels must be uint8 of 1 dimension, but are ", labels.scalar_type(), " ",
                    labels.sizes(), "; check that the file holds labels");
  TORCH_CHECK_VALUE(images.size(0) == labels.size(0), labels_name, ": ", labels.size(0), " labels, but ",
                    images_name, " has ", images.size(0), " images; take both files from the same set");
  TORCH_CHECK_VALUE(images.numel() > 0, images_name, ": no images (shape ", images.sizes(),
                    "); give a set that has some");
  if (classes == 0) return;
  const uint8_t* label = labels.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < labels.size(0); ++i) {
    TORCH_CHECK_VALUE(label[i] < classes, labels_name, ": label ", int(label[i]), " of image ", i,
                      " is out of range for ", classes,
                      " classes; correct the labels or raise the number of classes");
  }
}

double largest(const at::Tensor& bytes) { return bytes.max().item<double>(); }
double scale_of(double max) { return max > kDigitsMax ? kByteMax : kDigitsMax; }

std::shared_ptr<const TensorDataset> make(const Part& part, double scale) {
  return std::make_shared<TensorDataset>(part.images.unsqueeze(1).to(at::kFloat).div_(scale),
                                         part.labels.to(at::kLong));
}

}  // namespace

std::shared_ptr<const TensorDataset> make_idx_dataset(const at::Tensor& images, const at::Tensor& labels,
                                                      const std::string& name, int64_t classes) {
  const Part part{images, labels.contiguous(), name, name};
  check(part, classes);
  return make(part, scale_of(largest(images)));
}

bool has_idx_val_part(const fs::path& folder) {
  std::error_code ignored;
  return find_images(folder, ignored).size() > 1;
}

IdxDataset load_idx_dataset(const fs::path& path, int64_t classes, IdxLabels labels) {
  TORCH_CHECK_VALUE(classes >= 0 && classes <= kMaxIdxClasses, "load_idx_dataset: ", classes,
                    " classes; labels are bytes, so choose 1 to ", kMaxIdxClasses,
                    ", or 0 to take what the labels show");
  const std::vector<Pair> pairs = find_pairs(path, labels);
  const Pair* train = &pairs.front();
  const Pair* val = nullptr;
  if (pairs.size() > 1) {
    train = is_train(pairs[0]) ? &pairs[0] : &pairs[1];
    val = train == &pairs[0] ? &pairs[1] : &pairs[0];
    if (pairs.size() > 2 || !is_train(*train) || !is_test(*val)) {
      std::vector<std::string> names;
      for (const Pair& pair : pairs) names.push_back(pair.images.filename().string());
      TORCH_CHECK_VALUE(
          false, "load_idx_dataset: folder '", path.string(), "' holds several sets (", join_names(names),
          ") that are not one train- and one t10k- part; give the path of one images file instead");
    }
  }
  const Part train_part = read_part(*train);
  check(train_part, classes);
  double max = largest(train_part.images);
  IdxDataset loaded;
  loaded.classes =
      classes > 0 ? classes : std::max<int64_t>(10, static_cast<int64_t>(largest(train_part.labels)) + 1);
  Part val_part;
  if (val != nullptr) {
    val_part = read_part(*val);
    check(val_part, loaded.classes);  // a model has no output for a class that it is never trained on
    const auto train_size = train_part.images.sizes().slice(1), val_size = val_part.images.sizes().slice(1);
    TORCH_CHECK_VALUE(train_size == val_size, val_part.images_name, ": images of ", val_size[0], " x ",
                      val_size[1], " pixels, but those of ", train_part.images_name, " have ", train_size[0],
                      " x ", train_size[1], "; take both files from the same set");
    max = std::max(max, largest(val_part.images));
    loaded.val = make(val_part, scale_of(max));
  }
  loaded.train = make(train_part, scale_of(max));
  return loaded;
}

}  // namespace mantissa
