#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>

namespace mantissa::cli {

/// What an option can hold. Which of the kinds it is, its row in the table says.
using OptionValue = std::variant<bool, int64_t, uint64_t, double, std::string>;

/// Options by their YAML keys: one layer of a configuration (the flags, a file, the defaults), or all of them.
///
/// Errors: an internal error for a name that has no row, and for a value of another kind than its row's.
class OptionValues {
 public:
  bool has(std::string_view option) const { return find(option) != nullptr; }
  /// Null if the layer does not have it.
  const OptionValue* find(std::string_view option) const;
  /// The same where it is a T. T: a kind of OptionValue.
  template <typename T>
  const T* get_if(std::string_view option) const {
    const OptionValue* const value = find(option);
    return value ? std::get_if<T>(value) : nullptr;
  }
  /// Replaces what was there.
  void set(std::string_view option, OptionValue value);
  void erase(std::string_view option);

 private:
  std::map<std::string, OptionValue, std::less<>> values_;
};

/// Every option that `over` leaves unset, from `under`. But of two ways to say one thing the one that `over`
/// has stands for both, and the other stays unset: max_epochs and max_steps; precision, and amp_backend with
/// amp_level.
OptionValues merge(OptionValues over, const OptionValues& under);

}  // namespace mantissa::cli
