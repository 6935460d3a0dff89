#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mantissa {

/// A number that a user has written, or the reason why the text is not a number.
template <typename Number>
struct ParsedNumber {
  std::optional<Number> value;
  /// The reason why there is no value. It is written to follow the name of an option in a message, for example:
  /// "'1e400' is out of range: float64 has no number above 1.8e308; give a smaller one".
  std::string problem = {};
  /// The text is a number, but `Number` cannot hold it.
  bool is_out_of_range = false;
};

/// Reads all of `text` as a decimal number. Spaces are an error. A number is out of range if it would become inf, if
/// it is not 0 but would become 0, or if it is negative and `Number` is uint64_t.
///
/// `Number` is int64_t, uint64_t or double.
template <typename Number>
ParsedNumber<Number> parse_number(std::string_view text);

extern template ParsedNumber<int64_t> parse_number(std::string_view text);
extern template ParsedNumber<uint64_t> parse_number(std::string_view text);
extern template ParsedNumber<double> parse_number(std::string_view text);

}  // namespace mantissa
