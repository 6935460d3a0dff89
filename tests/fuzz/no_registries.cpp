// The parsers need the names and kinds of options, but not the models, data, modes and optimizers that some options
// choose from: these would link every room.
#include "cli/data/kinds.h"
#include "cli/option.h"
#include "mantissa/optim/registry.h"

namespace mantissa {

const std::vector<OptimizerEntry>& optimizers() {
  static const std::vector<OptimizerEntry> none;
  return none;
}

namespace cli {

const std::vector<DataKind>& data_kinds() {
  static const std::vector<DataKind> one = {{.name = "none"}};
  return one;
}

std::vector<std::string> registered_names(Registry /*registry*/) { return {"none"}; }

std::string canonical_mode(const std::string& precision) { return precision; }

}  // namespace cli
}  // namespace mantissa
