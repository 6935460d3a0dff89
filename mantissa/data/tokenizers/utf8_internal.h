#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mantissa::tokenizers {

enum class Utf8 { kValid, kInvalid, kIncomplete };

/// The bytes at the beginning of a text: a character, the longest beginning of one that another byte breaks off, or one that
/// the end of the text breaks off.
struct Utf8Step {
  Utf8 kind;
  size_t bytes;
};

/// Looks at the beginning of `text`, which must not be empty.
/// Source: Unicode 16, table 3-7.
Utf8Step utf8_step(std::string_view text);

/// Returns the position of the first byte that is not UTF-8, or npos.
size_t find_invalid_utf8(std::string_view text);

/// Moves the characters of `bytes` to the end of `text`. Each broken character becomes U+FFFD. An incomplete one at the end
/// stays in `bytes`, unless `is_end`.
void move_utf8(std::string& bytes, std::string& text, bool is_end);

/// Returns the code point of the character at the beginning of `text`, which must be valid.
uint32_t code_point(std::string_view text);
/// Returns the code point as UTF-8.
std::string utf8_of(uint32_t code);

/// True for the characters that have Unicode's property White_Space.
bool is_space(uint32_t code);
/// Returns the number of bytes of white space at the end, or the beginning, of valid UTF-8.
size_t spaces_at_end(std::string_view text);
size_t spaces_at_start(std::string_view text);

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  ///< U+FFFD

}  // namespace mantissa::tokenizers
