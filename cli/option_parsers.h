#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "mantissa/trainer/batch_limit.h"

// What the words of options mean that are neither a number nor a name. Each throws c10::ValueError with the
// option's name in it for a word that means nothing.
namespace mantissa::cli {

/// "100" is a count; "0.25" and "1.0" are shares.
BatchLimit parse_batch_limit(const std::string& flag, const std::string& text);

/// DD:HH:MM:SS, as Lightning has it; null for "".
std::optional<std::chrono::milliseconds> parse_max_time(const std::string& flag, const std::string& text);

/// "A,B": the words between the commas, of which each is one of `choices`; nothing for "none".
std::vector<std::string> parse_list(const std::string& flag, const std::string& text,
                                    const std::vector<std::string>& choices);

/// Errors: c10::ValueError with the nearest choice and all of them, if `value` is none.
void check_choice(const std::string& flag, const std::string& value, const std::vector<std::string>& choices);

}  // namespace mantissa::cli
