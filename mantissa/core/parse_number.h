#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mantissa {

/// A number that a user has written, or why the text is none.
template <typename Number>
struct ParsedNumber {
  std::optional<Number> value;
  /// Why there is no value, to be put behind the name of what was asked for: "'1e400' is out of range:
  /// float64 has no number above 1.8e308; give a smaller one".
  std::string problem = {};
  /// The text is a number, and `Number` cannot hold it.
  bool is_out_of_range = false;
};

/// Reads the whole of `text`, without spaces around it, as a number in decimal notation. A number that would
/// become inf, or 0 though it is not 0, is out of range. uint64_t also takes the negative numbers of int64_t,
/// which count down from 2^64 as they do for Python's torch.manual_seed().
///
/// `Number` is int64_t, uint64_t or double.
template <typename Number>
ParsedNumber<Number> parse_number(std::string_view text);

extern template ParsedNumber<int64_t> parse_number(std::string_view text);
extern template ParsedNumber<uint64_t> parse_number(std::string_view text);
extern template ParsedNumber<double> parse_number(std::string_view text);

}  // namespace mantissa
