#include "cli/data/kinds.h"

#include <algorithm>
#include <system_error>

#include <ATen/ops/bincount.h>
#include <ATen/ops/count_nonzero.h>
#include <c10/util/Exception.h>

#include "cli/fit_options.h"

namespace mantissa::cli {

std::pair<std::shared_ptr<const Dataset>, std::shared_ptr<const Dataset>> hold_out(
    const std::shared_ptr<const Dataset>& dataset, const FitOptions& o) {
  held_out_size(dataset->size(), o.val_fraction, ("--data " + o.data).c_str());  // whose error names the data
  return random_split(dataset, o.val_fraction, o.seed);
}

void check_shift(const FitOptions& o, int64_t height, int64_t width) {
  TORCH_CHECK_VALUE(o.images.shift < std::min(height, width), "--shift ", o.images.shift, ": --data ", o.data,
                    " has images of ", height, " x ", width, " pixels, which could disappear; choose less");
}

void warn_of_unused_classes(const at::Tensor& target, int64_t classes, const std::string& name) {
  constexpr int64_t kFew = 10;  // classes that begin at 1, or of which a small sample lacks some
  const auto used = at::bincount(target).count_nonzero().item<int64_t>();
  if (classes - used <= std::max(kFew, used)) return;
  TORCH_WARN(name, " has samples of ", used, " classes, whose numbers go up to ", classes - 1,
             ", and the model gets an output for each number; number the classes from 0 on without gaps");
}

const std::vector<DataKind>& data_kinds() {
  static const std::vector<DataKind> kinds = {digits_kind(), idx_kind(), cifar10_kind(), cifar100_kind(),
                                              images_kind(), npy_kind(), csv_kind(),     text_kind(),
                                              tokens_kind(), chat_kind()};
  return kinds;
}

const DataKind* find_data_kind(const std::string& data) {
  const size_t colon = data.find(':');
  const std::string name = data.substr(0, colon);
  const std::string argument = path_of_data(data);
  const auto& kinds = data_kinds();
  const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const DataKind& kind) {
    return kind.name == name && kind.argument.empty() == (colon == std::string::npos) &&
           kind.argument.empty() == argument.empty();
  });
  return found == kinds.end() ? nullptr : &*found;
}

std::string path_of_data(const std::string& data) {
  const size_t colon = data.find(':');
  return colon == std::string::npos ? "" : data.substr(colon + 1);
}

bool is_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

}  // namespace mantissa::cli
