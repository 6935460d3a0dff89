#include <algorithm>
#include <functional>
#include <utility>

#include "cli/option.h"
#include "mantissa/models/registry.h"
#include "mantissa/optim/registry.h"
#include "mantissa/precision/registry.h"

namespace mantissa::cli {
namespace {

/// Returns the names of the rows of `table` that `is_chosen` holds for.
template <typename Table, typename Predicate>
std::vector<std::string> names_in(const Table& table, Predicate is_chosen) {
  std::vector<std::string> names;
  for (const auto& row : table)
    if (std::invoke(is_chosen, row)) names.push_back(row.name);
  return names;
}

template <typename Table>
std::vector<std::string> names_in(const Table& table) {
  return names_in(table, [](const auto&) { return true; });
}

}  // namespace

std::vector<std::string> registered_names(Registry registry) {
  switch (registry) {
    case Registry::kModels: {
      std::vector<std::string> names = names_in(models());
      for (std::string& name : names_in(public_models())) names.push_back(std::move(name));
      return names;
    }
    case Registry::kModes:
      return names_in(modes());
    case Registry::kApexLevels:
      return names_in(modes(), &Mode::historical);
    case Registry::kOptimizers:
      return names_in(optimizers());
  }
  return {};
}

std::string canonical_mode(const std::string& precision) {
  for (const Mode& mode : modes())
    if (std::find(mode.aliases.begin(), mode.aliases.end(), precision) != mode.aliases.end())
      return mode.name;
  return precision;
}

}  // namespace mantissa::cli
