#include "mantissa/data/tokenizers/utf8_internal.h"

namespace mantissa::tokenizers {
namespace {

unsigned byte_at(std::string_view text, size_t i) { return static_cast<unsigned char>(text[i]); }
bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

struct Lead {
  size_t bytes;
  unsigned low, high;  ///< the limits of the second byte
};

Lead lead_of(unsigned byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte < 0xF0) return {3, byte == 0xE0 ? 0xA0U : 0x80U, byte == 0xED ? 0x9FU : 0xBFU};
  if (byte < 0xF5) return {4, byte == 0xF0 ? 0x90U : 0x80U, byte == 0xF4 ? 0x8FU : 0xBFU};
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  const Lead lead = lead_of(byte_at(text, 0));
  if (lead.bytes == 0) return {Utf8::kInvalid, 1};
  for (size_t i = 1; i < lead.bytes; ++i) {
    if (i == text.size()) return {Utf8::kIncomplete, i};
    const unsigned low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (byte_at(text, i) < low || byte_at(text, i) > high) return {Utf8::kInvalid, i};
  }
  return {Utf8::kValid, lead.bytes};
}

size_t find_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (byte_at(text, at) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8::kValid) return at;
    at += step.bytes;
  }
  return std::string_view::npos;
}

void move_utf8(std::string& bytes, std::string& text, bool is_end) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Utf8Step step = utf8_step(std::string_view(bytes).substr(at));
    if (step.kind == Utf8::kIncomplete && !is_end) break;
    if (step.kind == Utf8::kValid) {
      text.append(bytes, at, step.bytes);
    } else {
      text += kReplacement;
    }
    at += step.bytes;
  }
  bytes.erase(0, at);
}

uint32_t code_point(std::string_view text) {
  const unsigned first = byte_at(text, 0);
  const size_t bytes = lead_of(first).bytes;
  uint32_t code = bytes == 1 ? first : first & (0x7FU >> bytes);
  for (size_t i = 1; i < bytes; ++i) code = code << 6 | (byte_at(text, i) & 0x3F);
  return code;
}

std::string utf8_of(uint32_t code) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value); };
  const auto last = [&](uint32_t shift) { return byte(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xC0 | code >> 6), last(0)};
  if (code < 0x10000) return {byte(0xE0 | code >> 12), last(6), last(0)};
  return {byte(0xF0 | code >> 18), last(12), last(6), last(0)};
}

bool is_space(uint32_t code) {
  return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

size_t spaces_at_end(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0) {
    size_t at = begin - 1;
    while (is_continuation(text[at])) --at;
    if (!is_space(code_point(text.substr(at)))) break;
    begin = at;
  }
  return text.size() - begin;
}

size_t spaces_at_start(std::string_view text) {
  size_t end = 0;
  while (end < text.size() && is_space(code_point(text.substr(end))))
    end += utf8_step(text.substr(end)).bytes;
  return end;
}

}  // namespace mantissa::tokenizers
