#include "cli/option_parsers.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <string_view>

#include <c10/util/Exception.h>

#include "cli/dtype_names.h"
#include "mantissa/core/parse_number.h"
#include "mantissa/core/suggest.h"

namespace mantissa::cli {
namespace {

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// Splits `text` at the commas and removes blanks around each part. An error about an empty part ends in `problem`.
std::vector<std::string> parts_of(const std::string& flag, const std::string& text, const char* problem) {
  std::vector<std::string> parts = split_at_commas(text);
  for (std::string& part : parts) {
    part.erase(0, part.find_first_not_of(' '));
    part.resize(part.find_last_not_of(' ') + 1);  // npos + 1 is 0
    TORCH_CHECK_VALUE(!part.empty(), flag, " '", text, problem);
  }
  return parts;
}

}  // namespace

void check_choice(const std::string& flag, const std::string& value,
                  const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  const std::string dtype = other_dtype_name(value, choices);
  TORCH_CHECK_VALUE(false, flag, " '", value, "' is not a valid value",
                    did_you_mean(dtype.empty() ? value : dtype, choices), "; choose from ",
                    join_names(choices));
}

BatchLimit parse_batch_limit(const std::string& flag, const std::string& text) {
  if (const auto count = parse_number<int64_t>(text).value) return *count;
  const ParsedNumber<double> parsed = parse_number<double>(text);
  TORCH_CHECK_VALUE(!parsed.is_out_of_range, flag, " ", parsed.problem);
  const std::optional<double> share = parsed.value;
  TORCH_CHECK_VALUE(share && *share >= 0 && *share <= 1, flag, " '", text,
                    "' is neither a number of batches nor a fraction; give one such as 100, or 0.25");
  return *share;
}

std::optional<std::chrono::milliseconds> parse_max_time(const std::string& flag, const std::string& text) {
  if (text.empty()) return std::nullopt;
  // The parts are days, hours, minutes and seconds. The limit on the days keeps the sum far from overflow.
  constexpr std::array<int64_t, 4> kSeconds{86'400, 3'600, 60, 1}, kMaxPerPart{100'000, 23, 59, 59};
  int64_t seconds = 0;
  size_t parts = 0;
  bool is_time = true;
  for (size_t begin = 0; begin <= text.size() && is_time; ++parts) {
    const size_t end = std::min(text.find(':', begin), text.size());
    const auto value = parse_number<int64_t>(std::string_view(text).substr(begin, end - begin)).value;
    is_time = parts < kSeconds.size() && value && *value >= 0 && *value <= kMaxPerPart[parts];
    if (is_time) seconds += *value * kSeconds[parts];
    begin = end + 1;
  }
  TORCH_CHECK_VALUE(
      is_time && parts == kSeconds.size() && seconds > 0, flag, " '", text,
      "' is not a time above 0; write DD:HH:MM:SS with at most 23 hours, 59 minutes and 59 seconds, "
      "such as 00:01:30:00 for an hour and a half");
  return std::chrono::seconds(seconds);
}

std::vector<std::string> parse_list(const std::string& flag, const std::string& text,
                                    const std::vector<std::string>& choices) {
  TORCH_CHECK_VALUE(!text.empty(), flag, " is empty; write 'none' to choose none");
  if (text == "none") return {};
  std::vector<std::string> words;
  for (const std::string& word : parse_words(flag, text)) {
    check_choice(flag, word, choices);
    TORCH_CHECK_VALUE(word != "none", flag, " '", text,
                      "': none cannot be combined with other values; leave it or the others out");
    TORCH_CHECK_VALUE(std::find(words.begin(), words.end(), word) == words.end(), flag, " '", text,
                      "': ", word, " is listed twice; list it once");
    words.push_back(word);
  }
  return words;
}

std::vector<std::string> parse_words(const std::string& flag, const std::string& text) {
  return parts_of(flag, text, "' has an empty name; give names with commas between them, or leave it out");
}

std::vector<std::string> parse_words_or_none(const std::string& flag, const std::string& text) {
  return text.empty() ? std::vector<std::string>() : parse_words(flag, text);
}

std::vector<std::string> parse_columns(const std::string& flag, const std::string& text) {
  return parse_words_or_none(flag, text).empty() ? std::vector<std::string>() : split_at_commas(text);
}

std::vector<std::string> parse_settings(const std::string& flag, const std::string& text) {
  return parts_of(flag, text, "' has an empty setting; leave out the comma beside it");
}

std::string with_names(std::string text, const std::vector<std::pair<std::string, std::string>>& names) {
  const auto is_of_a_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
  };
  const auto is_of_a_word_at = [&](size_t at) { return at < text.size() && is_of_a_word(text[at]); };
  for (size_t begin = 0; begin < text.size();) {
    if (text[begin] == '\'' && (begin == 0 || !is_of_a_word(text[begin - 1]))) {  // not that of "mode's"
      size_t close = text.find('\'', begin + 1);
      while (close != std::string::npos && is_of_a_word_at(close + 1)) close = text.find('\'', close + 1);
      if (close != std::string::npos) {
        begin = close + 1;
        continue;
      }
    }
    if (!is_of_a_word(text[begin])) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (is_of_a_word_at(end)) ++end;
    const std::string word = text.substr(begin, end - begin);
    const auto found =
        std::find_if(names.begin(), names.end(), [&](const auto& name) { return name.first == word; });
    if (found != names.end()) text.replace(begin, word.size(), found->second);
    begin += found != names.end() ? found->second.size() : word.size();
  }
  return text;
}

}  // namespace mantissa::cli
