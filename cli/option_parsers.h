#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mantissa/trainer/batch_limit.h"

// Parsers of option values that are neither a number nor a name. Each throws c10::ValueError that names the
// option for a value that it cannot parse.
namespace mantissa::cli {

/// "100" is a count; "0.25" and "1.0" are fractions.
BatchLimit parse_batch_limit(const std::string& flag, const std::string& text);

/// Parses DD:HH:MM:SS, as Lightning does; returns nothing for "".
std::optional<std::chrono::milliseconds> parse_max_time(const std::string& flag, const std::string& text);

/// Splits "A,B" at the commas. Each word must be one of `choices`; "none" gives an empty list.
std::vector<std::string> parse_list(const std::string& flag, const std::string& text,
                                    const std::vector<std::string>& choices);

/// Splits "A,B" at the commas, whatever the words are.
/// Errors: c10::ValueError for an empty word.
std::vector<std::string> parse_words(const std::string& flag, const std::string& text);

/// As parse_words(); "" gives an empty list.
std::vector<std::string> parse_words_or_none(const std::string& flag, const std::string& text);

/// As parse_words_or_none(), but keeps the blanks around each word, which the name of a column may have.
std::vector<std::string> parse_columns(const std::string& flag, const std::string& text);

/// Splits "r=16,dora" at the commas, and removes blanks around each setting.
/// Errors: c10::ValueError for an empty setting.
std::vector<std::string> parse_settings(const std::string& flag, const std::string& text);

/// Errors: c10::ValueError with the nearest choice and all choices, if `value` is not one of them.
void check_choice(const std::string& flag, const std::string& value, const std::vector<std::string>& choices);

/// Returns `text` with other names for some words: {"dtype", "--quant-dtype"} changes "dtype" and not "qdtype".
/// What stands in single quotes is the user's own and stays as it is.
std::string with_names(std::string text, const std::vector<std::pair<std::string, std::string>>& names);

}  // namespace mantissa::cli
