#include "mantissa/core/parse_number.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <system_error>
#include <type_traits>

namespace mantissa {
namespace {

template <typename Number>
std::errc read(std::string_view text, Number& value) {
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stopped != end ? std::errc::invalid_argument : error;
}

template <typename Number>
std::string range_of(const std::string& text) {
  if constexpr (std::is_same_v<Number, double>) {
    // std::from_chars() does not distinguish the two cases.
    return std::abs(std::strtod(text.c_str(), nullptr)) < 1
               ? "it would become 0 in float64, whose smallest positive number is 4.9e-324; give a larger "
                 "one, or 0"
               : "float64 has no number above 1.8e308; give a smaller one";
  }
  return std::is_same_v<Number, int64_t>
             ? "choose a whole number from -9223372036854775808 to 9223372036854775807"
             : "choose a whole number from 0 to 18446744073709551615";
}

}  // namespace

template <typename Number>
ParsedNumber<Number> parse_number(std::string_view text) {
  Number value{};
  std::errc error = read(text, value);
  if constexpr (std::is_same_v<Number, uint64_t>) {
    int64_t negative = 0;  // a whole number, which std::from_chars() does not take for one
    if (text.starts_with('-') && read(text, negative) != std::errc::invalid_argument)
      error = std::errc::result_out_of_range;
  }
  if (error == std::errc()) return {value};
  const std::string word(text);
  if (error == std::errc::result_out_of_range)
    return {std::nullopt, "'" + word + "' is out of range: " + range_of<Number>(word), true};
  return {std::nullopt, "'" + word + "' is not a " +
                            (std::is_same_v<Number, double> ? "number" : "whole number") + "; give one"};
}

template ParsedNumber<int64_t> parse_number(std::string_view text);
template ParsedNumber<uint64_t> parse_number(std::string_view text);
template ParsedNumber<double> parse_number(std::string_view text);

}  // namespace mantissa
