#include "cli/data/kinds.h"

#include <algorithm>

#include "cli/fit_options.h"

namespace mantissa::cli {

std::pair<std::shared_ptr<const Dataset>, std::shared_ptr<const Dataset>> hold_out(
    const std::shared_ptr<const Dataset>& dataset, const FitOptions& o) {
  held_out_size(dataset->size(), o.val_fraction, ("--data " + o.data).c_str());  // whose error names the data
  return random_split(dataset, o.val_fraction, o.seed);
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
  const std::string argument = colon == std::string::npos ? "" : data.substr(colon + 1);
  const auto& kinds = data_kinds();
  const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const DataKind& kind) {
    return kind.name == name && kind.argument.empty() == (colon == std::string::npos) &&
           kind.argument.empty() == argument.empty();
  });
  return found == kinds.end() ? nullptr : &*found;
}

}  // namespace mantissa::cli
