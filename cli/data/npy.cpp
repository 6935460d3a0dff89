#include "mantissa/data/npy.h"

#include <filesystem>
#include <string>
#include <system_error>

#include <c10/util/Exception.h>

#include "cli/data/kinds.h"
#include "cli/fit_options.h"
#include "mantissa/data/images/byte_images.h"

namespace mantissa::cli {
namespace {

namespace fs = std::filesystem;

/// The images, or rows of features, of a part, with a class for each.
struct Part {
  at::Tensor data;    ///< uint8 or float32 [n, channels, height, width]
  at::Tensor target;  ///< int64 [n]
};

/// Returns images of one channel for [n, height, width], and of one row for [n, features].
at::Tensor as_images(const at::Tensor& data, const std::string& name) {
  TORCH_CHECK_VALUE(
      data.dim() >= 2 && data.dim() <= 4 && data.numel() > 0 && data.scalar_type() != at::kBool, "'", name,
      "' is ", data.scalar_type(), ' ', data.sizes(),
      "; give images [n, channels, height, width] or [n, height, width], or features [n, count]");
  at::Tensor images = data;
  while (images.dim() < 4) images = images.unsqueeze(1);
  return images.scalar_type() == at::kByte ? images : images.to(at::kFloat);
}

Part read_part(const fs::path& folder, const std::string& prefix) {
  const fs::path data = folder / (prefix + "data.npy"), target = folder / (prefix + "target.npy");
  Part part{as_images(read_npy(data), data.string()), read_npy(target)};
  TORCH_CHECK_VALUE(
      part.target.dim() == 1 && at::isIntegralType(part.target.scalar_type(), /*includeBool=*/true), "'",
      target.string(), "' is ", part.target.scalar_type(), ' ', part.target.sizes(),
      "; give the numbers of the classes, integers [n]");
  part.target = part.target.to(at::kLong);
  TORCH_CHECK_VALUE(part.target.size(0) == part.data.size(0), "'", target.string(), "' has ",
                    part.target.size(0), " numbers, and '", data.string(), "' has ", part.data.size(0),
                    " samples");
  TORCH_CHECK_VALUE(part.target.min().item<int64_t>() >= 0, "'", target.string(),
                    "' has a negative number; classes are numbered from 0 on");
  return part;
}

std::shared_ptr<const Dataset> dataset(const Part& part) {
  if (part.data.scalar_type() == at::kByte) return std::make_shared<ByteImageDataset>(part.data, part.target);
  return std::make_shared<TensorDataset>(part.data, part.target);
}

Data load_arrays(const std::string& path, const FitOptions& /*o*/) {
  const fs::path folder = path;
  std::error_code ignored;
  const bool has_parts = fs::exists(folder / "train_data.npy", ignored);
  const Part train = read_part(folder, has_parts ? "train_" : "");
  const auto size_of = [](const Part& part) { return part.data.sizes().slice(1); };
  Data data{.name = "npy",
            .train = dataset(train),
            .val = nullptr,
            .input = {.kind = InputKind::kImages,
                      .channels = train.data.size(1),
                      .height = train.data.size(2),
                      .width = train.data.size(3),
                      .classes = train.target.max().item<int64_t>() + 1}};
  if (!has_parts || !fs::exists(folder / "val_data.npy", ignored)) return data;
  const Part val = read_part(folder, "val_");
  TORCH_CHECK_VALUE(size_of(val) == size_of(train) && val.target.max().item<int64_t>() < data.input.classes,
                    "'", path, "': val_data.npy has samples of ", size_of(val), " and ",
                    val.target.max().item<int64_t>() + 1, " classes, and train_data.npy has ", size_of(train),
                    " and ", data.input.classes, "; give both the same");
  data.val = dataset(val);
  return data;
}

}  // namespace

DataKind npy_kind() {
  return {.name = "npy",
          .argument = "DIR",
          .help = "arrays of NumPy: data.npy and target.npy",
          .input = InputKind::kImages,
          .load = &load_arrays};
}

}  // namespace mantissa::cli
