#include "cli/option.h"
#include "mantissa/models/registry.h"
#include "mantissa/optim/registry.h"
#include "mantissa/precision/registry.h"

namespace mantissa::cli {
namespace {

template <typename Table>
std::vector<std::string> names_in(const Table& table) {
  std::vector<std::string> names;
  for (const auto& row : table) names.push_back(row.name);
  return names;
}

}  // namespace

std::vector<std::string> registered_names(Registry registry) {
  switch (registry) {
    case Registry::kModels:
      return names_in(models());
    case Registry::kModes:
      return names_in(modes());
    case Registry::kOptimizers:
      return names_in(optimizers());
  }
  return {};
}

}  // namespace mantissa::cli
