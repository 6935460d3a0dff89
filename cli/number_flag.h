#pragma once

#include <string>

#include <CLI/App.hpp>

#include "mantissa/core/parse_number.h"

namespace mantissa::cli {

/// Adds a flag whose number is parsed as those of the options are: CLI11 takes "0x10", and says nothing of the range.
/// `word` stands for the number in the help.
template <typename Number>
void add_number(CLI::App& sub, const char* flag, Number& to, const char* word, const std::string& help) {
  sub.add_option_function<std::string>(
         flag, [&to](const std::string& text) { to = *parse_number<Number>(text).value; }, help)
      ->check([](const std::string& text) { return parse_number<Number>(text).problem; }, "")
      ->option_text(word);
}

}  // namespace mantissa::cli
