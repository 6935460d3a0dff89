#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <c10/util/Exception.h>

#include "cli/option_values.h"

namespace mantissa::cli {

struct FitOptions;
struct Option;

/// In the order of `fit --help`.
enum class Group {
  kData,
  kImages,
  kModel,
  kPrecision,
  kOptimizer,
  kSchedule,
  kLimits,
  kLogging,
  kCheckpoints
};
const char* group_name(Group group);

/// The member that receives an option's value, and thereby the type of the value.
struct Destination {
  size_t kind;  ///< OptionValue's index
  std::function<void(FitOptions&, const Option&, const OptionValue&)> set;
  /// If true, "auto" is a value as well, and leaves the decision to the precision mode.
  bool or_auto = false;
};

struct Range {
  double low, high;
  const char* low_means = "";  ///< what the lowest value stands for, such as "none"
};

/// Values of Range::high: kLargest sets no upper limit, and kBelowOne excludes 1 itself.
inline constexpr double kLargest = std::numeric_limits<double>::max();
inline constexpr double kBelowOne = 1 - std::numeric_limits<double>::epsilon() / 2;

/// Returns "choose 0 (none) to 1024", "choose 1 or more" or "choose 0 or more, below 1".
std::string cure_of(const Range& range);

/// An option of `fit`: a row of the table that defines its flag, YAML key, default, range, choices, help,
/// shell completion and destination.
struct Option {
  std::string name;  ///< the YAML key; the flag has dashes for underscores
  Group group;
  Destination to;
  OptionValue default_value;
  std::string help;
  /// The default for a model that reads text, if it differs.
  std::optional<OptionValue> default_for_text = std::nullopt;
  /// The range of a number.
  std::optional<Range> range = std::nullopt;
  /// The values that the option accepts; empty if it accepts any value.
  std::vector<std::string> choices = {};
  /// A text that begins with one of these is accepted beside the choices.
  std::vector<std::string> choice_prefixes = {};
  /// The text is a list with commas between its elements: of choices, if the option has any. A configuration file may also
  /// write it as a list.
  bool is_list = false;
  /// The text is a list of settings, such as r=16,targets=a+b,dora: a setting without a value is a switch that is on,
  /// and a value that is a list itself has a + between its elements.
  bool has_settings = false;
  /// A configuration file may also write the settings as a map, where `name` is the text before the first setting.
  bool takes_map = false;
  /// The option also takes an empty text.
  bool may_be_empty = false;
  /// The flag must not be empty.
  bool names_a_file = false;
  /// Apex's name for the option, which is accepted as well.
  std::string also_called = {};
  /// `resume` takes the option as well.
  bool in_resume = false;
  /// `validate`, `test` and `predict` take the option as well.
  bool in_trained = false;
  /// `generate` does not take it: it has an option of its own with this name, or needs none.
  bool not_in_generate = false;
  /// The commands that take a trained model ignore the run's value: it is about the training, not about its model.
  bool only_for_training = false;
  /// The help in the commands other than `fit`, if it differs.
  std::string help_elsewhere = {};
  /// The name that the library's messages have for the option, which with_flags() replaces by the flag. An or_auto
  /// option needs it only if it differs from `name`.
  std::string in_library = {};
  /// The option's names in other programs; an error for such a name suggests this option.
  std::vector<std::string> known_as = {};

  bool is_switch() const { return std::holds_alternative<bool>(default_value); }
};

/// Every option of `fit`, group by group.
const std::vector<Option>& options();

/// Returns the row of this name, or null.
const Option* find_option(std::string_view name);

/// Returns "--max-steps" for "max_steps".
std::string flag_of(std::string_view name);

/// Returns the value of an option that is not given.
const OptionValue& default_of(const Option& option, bool reads_text);

/// Calls `visit` with a null pointer to the type of this kind of value.
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

/// Errors: c10::ValueError that names the flag, for a value that is not one of the choices or out of range.
void check_value(const Option& option, const OptionValue& value);

/// Returns the one of `candidates` (YAML keys or flags) that `name` most likely means: the nearest one, or
/// the one that other programs call so, such as lr for "learning_rate". Returns "" if there is none.
std::string option_meant(const std::string& name, const std::vector<std::string>& candidates);

/// Returns a message of the library in which a mode's options have their flags, such as --quant-dtype for "dtype".
std::string with_flags(const std::string& message);

/// Runs code that passes options to the library. Its c10::ValueError names the flags.
template <typename Check>
auto naming_flags(const Check& check) {
  try {
    return check();
  } catch (const c10::ValueError& error) {
    C10_THROW_ERROR(ValueError, with_flags(error.what_without_backtrace()));
  }
}

/// The library's tables of names.
enum class Registry { kModels, kModes, kApexLevels, kOptimizers };
std::vector<std::string> registered_names(Registry registry);

/// Returns a mode's name for its alias, without the alias's warning, and any other text as it is.
std::string canonical_mode(const std::string& precision);

}  // namespace mantissa::cli
