#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>

namespace mantissa::cli {

/// The value of an option. The option's row in the table defines its type.
using OptionValue = std::variant<bool, int64_t, uint64_t, double, std::string>;

/// Options by their YAML keys: one layer of a configuration (the flags, a file, the defaults), or all of
/// them.
///
/// Errors: an internal error for a name without a row, and for a value of another type than its row's.
class OptionValues {
 public:
  bool has(std::string_view option) const { return find(option) != nullptr; }
  /// Returns null if the layer does not have the option.
  const OptionValue* find(std::string_view option) const;
  /// Returns the value if it is a T, else null. T is one of OptionValue's types.
  template <typename T>
  const T* get_if(std::string_view option) const {
    const OptionValue* const value = find(option);
    return value ? std::get_if<T>(value) : nullptr;
  }
  /// Replaces an existing value.
  void set(std::string_view option, OptionValue value);
  void erase(std::string_view option);

 private:
  std::map<std::string, OptionValue, std::less<>> values_;
};

/// Returns `over` with the options that it leaves unset taken from `under`. Where there are two ways to
/// express one thing, the one in `over` replaces both, and the other stays unset: max_epochs and max_steps;
/// precision, and amp_backend with amp_level. A precision in `over` also drops the fallback below, unless it is the mode below.
OptionValues merge(OptionValues over, const OptionValues& under);

}  // namespace mantissa::cli
