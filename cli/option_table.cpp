#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "cli/option.h"
#include "cli/options/groups.h"
#include "mantissa/core/suggest.h"

namespace mantissa::cli {

std::string either(std::vector<std::string> names) {
  const std::string last = names.back();
  names.pop_back();
  return join_names(names) + " or " + last;
}

const std::vector<std::string>& metrics() {
  static const std::vector<std::string> words{"val_loss", "val_accuracy", "train_loss"};
  return words;
}

const std::vector<Option>& options() {
  static const std::vector<Option> table = [] {
    std::vector<Option> all;
    for (const auto group : {data_options, image_options, model_options, precision_options, optimizer_options,
                             schedule_options, limit_options, logging_options, checkpoint_options}) {
      for (Option& option : group()) {
        TORCH_INTERNAL_ASSERT(option.default_value.index() == option.to.kind &&
                                  default_of(option, true).index() == option.to.kind,
                              "the default of ", option.name, " is of another kind than its member");
        all.push_back(std::move(option));
      }
    }
    return all;
  }();
  return table;
}

}  // namespace mantissa::cli
