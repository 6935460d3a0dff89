#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "cli/option_values.h"

namespace mantissa::cli {

struct FitOptions;
struct Option;

/// In the order of `fit --help`.
enum class Group { kData, kModel, kPrecision, kOptimizer, kSchedule, kLimits, kLogging, kCheckpoints };
const char* group_name(Group group);

/// Where an option's value goes, and therefore which kind of value it has.
struct Destination {
  size_t kind;  ///< OptionValue's index
  std::function<void(FitOptions&, const Option&, const OptionValue&)> set;
  /// "auto" is a value, and leaves the decision to the precision mode.
  bool or_auto = false;
};

struct Range {
  double low, high;
  const char* cure;  ///< "choose at least 1"
};

/// An option of `fit`: the row of a table from which its flag, YAML key, default, range, choices, help, shell
/// completion and destination all come.
struct Option {
  std::string name;  ///< the YAML key; the flag has dashes for underscores
  Group group;
  Destination to;
  OptionValue default_value;
  std::string help;
  /// The default for a model that reads text, where it differs.
  std::optional<OptionValue> default_for_text = std::nullopt;
  /// For numbers.
  std::optional<Range> range = std::nullopt;
  /// All of its values; empty: any.
  std::vector<std::string> choices = {};
  /// It takes several of the choices, with commas between them.
  bool is_list = false;
  /// It takes empty text beside the choices.
  bool may_be_empty = false;
  /// Its flag cannot be empty.
  bool names_a_file = false;
  /// Apex's name for it, which is accepted too.
  std::string also_called = {};
  /// `resume` takes it too.
  bool in_resume = false;
  /// `validate`, `test` and `predict` take it too.
  bool in_trained = false;
  /// Its help in those four commands, where it differs.
  std::string help_elsewhere = {};
  /// What other programs call it: an error then names this one.
  std::vector<std::string> known_as = {};

  bool is_switch() const { return std::holds_alternative<bool>(default_value); }
};

/// Every option of `fit`, group by group.
const std::vector<Option>& options();

/// The row of this name, or null.
const Option* find_option(std::string_view name);

/// "--max-steps" for "max_steps".
std::string flag_of(std::string_view name);

/// What the option is when nobody gives it.
const OptionValue& default_of(const Option& option, bool reads_text);

/// Calls `visit` with a null pointer to the type that values of this kind have.
template <typename Visit>
decltype(auto) visit_kind(size_t kind, const Visit& visit) {
  switch (kind) {
    case 0:
      return visit(static_cast<bool*>(nullptr));
    case 1:
      return visit(static_cast<int64_t*>(nullptr));
    case 2:
      return visit(static_cast<uint64_t*>(nullptr));
    case 3:
      return visit(static_cast<double*>(nullptr));
    default:
      return visit(static_cast<std::string*>(nullptr));
  }
}
static_assert(std::variant_size_v<OptionValue> == 5, "visit_kind() names every kind");

/// Errors: c10::ValueError, the flag in it, for a value that is none of the choices or out of range.
void check_value(const Option& option, const OptionValue& value);

/// The one of `candidates` (names as in YAML, or as flags) that `name` was most likely meant to be: the nearest,
/// or the one for which other programs have that name, as "learning_rate" for lr; else "".
std::string option_meant(const std::string& name, const std::vector<std::string>& candidates);

/// The names in one of the library's tables.
enum class Registry { kModels, kModes, kOptimizers };
std::vector<std::string> registered_names(Registry registry);

}  // namespace mantissa::cli
