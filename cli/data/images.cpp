#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <c10/util/Exception.h>

#include "cli/data/kinds.h"
#include "cli/errors.h"
#include "cli/fit_options.h"
#include "mantissa/data/images/image_dataset.h"
#include "mantissa/data/images/image_folder.h"
#include "mantissa/data/images/packed_images.h"

namespace mantissa::cli {
namespace {

namespace fs = std::filesystem;
using Source = std::shared_ptr<const ImageSource>;

/// The images to train on, and those to validate on, if the data has a split of its own.
struct Split {
  Source train, val;
};

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

Source open_source(const fs::path& path, ImageClasses classes = ImageClasses::kFolders) {
  if (is_folder(path)) return std::make_shared<ImageFolder>(path, classes);
  return std::make_shared<PackedImages>(path);
}

/// Returns the part of this name: a folder, or a packed file with the ending .pack; an empty path if there is none.
fs::path find_part(const fs::path& root, const std::string& name) {
  for (const std::string& file : {name, name + ".pack"})
    if (is_there(root / file)) return root / file;
  return {};
}

/// Returns null if there is no such part.
Source open_part(const fs::path& root, const std::string& name,
                 ImageClasses classes = ImageClasses::kFolders) {
  const fs::path part = find_part(root, name);
  return part.empty() ? nullptr : open_source(part, classes);
}

bool has_val_images(const std::string& path) { return !find_part(path, "val").empty(); }

/// A label is a position among the classes, so both parts need the same ones.
void check_classes(const Split& split, const std::string& name) {
  const auto &train = split.train->classes(), &val = split.val->classes();
  std::vector<std::string> differ;  // the classes are sorted
  std::set_symmetric_difference(train.begin(), train.end(), val.begin(), val.end(),
                                std::back_inserter(differ));
  TORCH_CHECK_VALUE(differ.empty(), "images '", name, "': the class '", on_one_line(differ[0]),
                    "' is in one of train and val alone (", differ.size(),
                    " such classes); give both the same folders");
}

Split open_split(const std::string& name) {
  const fs::path root = name;
  Split split{open_part(root, "train"), open_part(root, "val")};
  if (!split.train && !split.val) return {open_source(root), nullptr};
  TORCH_CHECK_VALUE(split.train && split.val, "images '", name, "' has a part ",
                    split.train ? "train" : "val", ", but no ", split.train ? "val" : "train",
                    "; give both, or name a folder that has the classes in it");
  check_classes(split, name);
  return split;
}

std::shared_ptr<const Dataset> dataset(const Source& source, std::shared_ptr<const ImagePipeline> pipeline,
                                       const ImageOptions& o) {
  return std::make_shared<ImageDataset>(
      source, std::move(pipeline),
      ImageDatasetOptions{.corrupt = o.corrupt == "skip" ? CorruptImages::kSkip : CorruptImages::kRefuse,
                          .scaled_decoding = !o.exact_decoding});
}

std::shared_ptr<const ImagePipeline> augmentation(const ImageOptions& o) {
  ImageAugmentationOptions options{
      .size = o.size,
      .scale = {o.crop_scale, 1},
      .flip_probability = o.flip,
      .color_jitter = {
          .brightness = o.color_jitter, .contrast = o.color_jitter, .saturation = o.color_jitter}};
  if (o.rand_augment > 0) options.rand_augment = RandAugmentOptions{.magnitude = o.rand_augment};
  return std::make_shared<ImageAugmentation>(options);
}

std::shared_ptr<const ImagePipeline> evaluation(const ImageOptions& o) {
  constexpr double kMargin = 256.0 / 224.0;
  return std::make_shared<ImageEvaluation>(o.size, std::lround(static_cast<double>(o.size) * kMargin));
}

/// Images that have their numbers as labels, for predictions.
class NumberedImages final : public ImageSource {
 public:
  explicit NumberedImages(Source source) : source_(std::move(source)) {}
  int64_t size() const override { return source_->size(); }
  const std::vector<std::string>& classes() const override { return source_->classes(); }
  int64_t label(int64_t index) const override { return index; }
  std::string name(int64_t index) const override { return source_->name(index); }
  std::string_view read(int64_t index, std::string& buffer) const override {
    return source_->read(index, buffer);
  }

 private:
  Source source_;
};

Source with_labels(const Source& source, const FitOptions& o) {
  return o.reads_labels ? source : std::make_shared<NumberedImages>(source);
}

Data data_of(const Source& source, const ImageOptions& o) {
  return {.name = "images",
          .train = nullptr,
          .val = nullptr,
          .input = {.kind = InputKind::kImages,
                    .channels = 3,
                    .height = o.size,
                    .width = o.size,
                    .classes = std::ssize(source->classes())},
          .is_augmented = true,
          .names = {.classes = source->classes()},
          .file_of = [source](int64_t index) { return source->name(index); }};
}

Data load_images(const std::string& name, const FitOptions& o) {
  const auto [train, val] = open_split(name);
  Data data = data_of(train, o.images);
  data.train = dataset(train, augmentation(o.images), o.images);
  if (val) {
    data.val = dataset(with_labels(val, o), evaluation(o.images), o.images);
    data.file_of = [source = val](int64_t index) { return source->name(index); };
    return data;
  }
  // Equal seeds split both alike, so that no image is in both parts.
  const auto evaluated = dataset(with_labels(train, o), evaluation(o.images), o.images);
  data.val = hold_out(evaluated, o).second;
  data.train = hold_out(data.train, o).first;
  return data;
}

Data load_all_images(const std::string& name, const FitOptions& o) {
  const fs::path root = name;
  const ImageClasses classes = o.reads_labels ? ImageClasses::kFolders : ImageClasses::kFoldersOrNone;
  Source source = open_part(root, "val", classes);
  if (!source) source = open_part(root, "train", classes);
  if (!source) source = open_source(root, classes);
  Data data = data_of(source, o.images);
  data.val = dataset(with_labels(source, o), evaluation(o.images), o.images);
  return data;
}

}  // namespace

DataKind images_kind() {
  return {.name = "images",
          .argument = "DIR",
          .help = "JPEG and PNG, a folder for each class, or a file of mantissa pack",
          .input = InputKind::kImages,
          .load = &load_images,
          .load_all = &load_all_images,
          .has_val_part = &has_val_images,
          .options = {"image_size", "crop_scale", "flip", "color_jitter", "rand_augment", "corrupt_images",
                      "exact_decoding", "mixup", "cutmix"}};
}

}  // namespace mantissa::cli
