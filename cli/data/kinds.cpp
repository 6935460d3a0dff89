#include "cli/data/kinds.h"

#include <algorithm>

namespace mantissa::cli {

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
