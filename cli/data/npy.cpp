#include "mantissa/data/npy.h"

#include <filesystem>
#include <string>
#include <system_error>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "cli/data/kinds.h"
#include "cli/fit_options.h"
#include "cli/nonfinite_values.h"
#include "mantissa/data/dataset.h"
#include "mantissa/data/images/byte_images.h"

namespace mantissa::cli {
namespace {

namespace fs = std::filesystem;

/// Of red, green, blue and alpha.
constexpr int64_t kMaxColours = 4;

/// The images, or rows of features, of a part, with a class for each.
struct Part {
  at::Tensor data;    ///< uint8 or float32 [n, channels, height, width]
  at::Tensor target;  ///< int64 [n]
  bool has_features = false;
};

bool is_of_features(int64_t dimensions) { return dimensions == 2; }

/// What a run remembers of the values: bytes are divided by 255.
const char* dtype_name(at::ScalarType dtype) { return dtype == at::kByte ? "uint8" : "float32"; }

/// A loss of nan would be blamed on the training.
void check_finite(const at::Tensor& images, const std::string& name) {
  const int64_t wrong = nonfinite_values(images);
  TORCH_CHECK_VALUE(wrong == 0, "'", name, "' has nan or inf in float32: ", wrong, " of ", images.numel(),
                    " values; leave those samples out");
}

/// Errors: c10::ValueError for an array that is neither images nor features.
void check_array(const at::Tensor& data, const std::string& name) {
  TORCH_CHECK_VALUE(data.scalar_type() != at::kBool, "'", name,
                    "' has values of the dtype bool, which is not supported; save them as uint8, int8 to "
                    "int64 or float16 to float64, for example with .astype('float32')");
  TORCH_CHECK_VALUE(
      data.dim() >= 2 && data.dim() <= 4, "'", name, "' is ", data.scalar_type(), ' ', data.sizes(),
      "; give images [n, channels, height, width] or [n, height, width], or features [n, count]");
  TORCH_CHECK_VALUE(data.numel() > 0, "'", name, "' is ", data.sizes(), " and has no ",
                    data.size(0) == 0 ? "rows" : "values", "; save an array that has some");
}

/// Returns images of one channel for [n, height, width], and of one row for [n, features].
at::Tensor as_images(const at::Tensor& data, const std::string& name) {
  check_array(data, name);
  const bool is_channels_last = data.dim() == 4 && data.size(3) <= kMaxColours && data.size(1) > kMaxColours;
  if (is_channels_last)
    TORCH_WARN("'", name, "' is ", data.sizes(), ", which is read as images of ", data.size(1),
               " channels and ", data.size(2), " x ", data.size(3),
               " pixels; if the channels are last, save data.transpose(0, 3, 1, 2)");
  at::Tensor images = data;
  while (images.dim() < 4) images = images.unsqueeze(1);
  if (images.scalar_type() == at::kByte) return images;
  images = images.to(at::kFloat);
  check_finite(images, name);
  return images;
}

Part read_part(const fs::path& folder, const std::string& prefix, const FitOptions& o) {
  const fs::path data = folder / (prefix + "data.npy"), target = folder / (prefix + "target.npy");
  const at::Tensor values = read_npy(data);
  const std::string dtype = dtype_name(values.scalar_type());
  TORCH_CHECK_VALUE(o.names.dtype.empty() || o.names.dtype == dtype, "'", data.string(), "' has ",
                    c10::toString(values.scalar_type()), " values, and the data of the run has ",
                    o.names.dtype,
                    " values; bytes are divided by 255, and other numbers are not, so save both alike");
  Part part{as_images(values, data.string()), {}, is_of_features(values.dim())};
  if (!o.reads_labels) {
    part.target = at::zeros({part.data.size(0)}, at::TensorOptions(at::kLong).device(at::kCPU));
    return part;
  }
  part.target = read_npy(target);
  TORCH_CHECK_VALUE(
      part.target.dim() == 1 && at::isIntegralType(part.target.scalar_type(), /*includeBool=*/true), "'",
      target.string(), "' is ", part.target.scalar_type(), ' ', part.target.sizes(),
      "; give the numbers of the classes, integers [n]");
  part.target = part.target.to(at::kLong);
  TORCH_CHECK_VALUE(part.target.size(0) == part.data.size(0), "'", target.string(), "' has ",
                    part.target.size(0), " numbers, and '", data.string(), "' has ", part.data.size(0),
                    " samples");
  const auto least = part.target.min().item<int64_t>(), largest = part.target.max().item<int64_t>();
  TORCH_CHECK_VALUE(least >= 0 && largest < kMaxClasses, "'", target.string(), "' has the class ",
                    least < 0 ? least : largest, "; classes are numbered from 0 to ", kMaxClasses - 1);
  return part;
}

std::shared_ptr<const Dataset> dataset(const Part& part) {
  if (part.data.scalar_type() == at::kByte) return std::make_shared<ByteImageDataset>(part.data, part.target);
  return std::make_shared<TensorDataset>(part.data, part.target);
}

bool has_file(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// Returns what the names of the files with the training data begin with.
std::string train_prefix(const fs::path& folder) {
  return has_file(folder / "train_data.npy") ? "train_" : "";
}

bool has_val_arrays(const std::string& path) {
  const fs::path folder = path;
  return !train_prefix(folder).empty() && has_file(folder / "val_data.npy");
}

/// A header tells features, which have no neighbours for a convolution, from images.
DataDefaults defaults_of_arrays(const std::string& path) {
  const fs::path folder = path;
  try {
    const NpyHeader header = read_npy_header(folder / (train_prefix(folder) + "data.npy"));
    if (is_of_features(std::ssize(header.shape))) return {{"model", "mlp"}};
  } catch (const c10::Error&) {
    return {};  // load_arrays() says what is wrong
  }
  return {};
}

Data load_arrays(const std::string& path, const FitOptions& o) {
  const fs::path folder = path;
  std::error_code ignored;
  TORCH_CHECK_VALUE(!fs::exists(folder, ignored) || fs::is_directory(folder, ignored), "--data npy:", path,
                    " is a file; give the folder that has it as data.npy");
  const Part train = read_part(folder, train_prefix(folder), o);
  const auto size_of = [](const Part& part) { return part.data.sizes().slice(1); };
  Data data{.name = "npy",
            .train = dataset(train),
            .val = nullptr,
            .input = {.kind = InputKind::kImages,
                      .channels = train.data.size(1),
                      .height = train.data.size(2),
                      .width = train.data.size(3),
                      .classes = o.reads_labels ? train.target.max().item<int64_t>() + 1 : 0},
            .has_features = train.has_features,
            .names = {.dtype = dtype_name(train.data.scalar_type())}};
  if (o.reads_labels && o.names.dtype.empty())
    warn_of_unused_classes(train.target, data.input.classes, "--data npy:" + path);
  if (!has_val_arrays(path)) return data;
  const Part val = read_part(folder, "val_", o);
  TORCH_CHECK_VALUE(val.data.scalar_type() == train.data.scalar_type(), "'", path, "': val_data.npy has ",
                    val.data.scalar_type(), " values, and train_data.npy has ", train.data.scalar_type(),
                    "; bytes are divided by 255, and other numbers are not, so save both alike");
  const int64_t classes = o.reads_labels ? val.target.max().item<int64_t>() + 1 : 0;
  TORCH_CHECK_VALUE(size_of(val) == size_of(train) && classes <= data.input.classes, "'", path,
                    "': val_data.npy has samples of ", size_of(val), " and ", classes,
                    " classes, and train_data.npy has ", size_of(train), " and ", data.input.classes,
                    "; give both the same");
  data.val = dataset(val);
  return data;
}

}  // namespace

DataKind npy_kind() {
  return {.name = "npy",
          .argument = "DIR",
          .help = "arrays of NumPy: data.npy and target.npy",
          .input = InputKind::kImages,
          .load = &load_arrays,
          .has_val_part = &has_val_arrays,
          .options = {"shift", "mixup", "cutmix"},
          .defaults_of = &defaults_of_arrays};
}

}  // namespace mantissa::cli
