#include <algorithm>

#include "mantissa/data/tokenizers/parts_internal.h"
#include "mantissa/data/tokenizers/utf8_internal.h"

namespace mantissa {
namespace tokenizers {
namespace {

/// True if a word's character is at the beginning of `text`.
bool begins_with_word(std::string_view text) {
  static const Pattern word(
      R"([\p{L}\p{Nl}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}])",
      "AddedTokens", Pattern::Dialect::kPcre2);
  return !text.empty() && word.begins(text);
}

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  size_t at = text.size() - 1;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return begins_with_word(text.substr(at));
}

std::array<std::string, 256> make_characters_of_bytes() {
  std::array<std::string, 256> characters;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_printed = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    characters[byte] = utf8_of(is_printed ? byte : next++);
  }
  return characters;
}

}  // namespace

const std::array<std::string, 256>& characters_of_bytes() {
  static const std::array<std::string, 256> characters = make_characters_of_bytes();
  return characters;
}

std::string bytes_of(const std::string& token) {
  static const auto bytes = [] {
    std::unordered_map<uint32_t, char> map;
    for (size_t byte = 0; byte < 256; ++byte)
      map[code_point(characters_of_bytes()[byte])] = static_cast<char>(byte);
    return map;
  }();
  std::string result;
  for (std::string_view rest = token; !rest.empty(); rest.remove_prefix(utf8_step(rest).bytes)) {
    const auto found = bytes.find(code_point(rest));
    if (found == bytes.end()) return token;
    result += found->second;
  }
  return result;
}

void AddedTokens::add(const AddedToken& token, std::string text) {
  if (text.empty()) return;
  std::vector<Entry>& bucket = by_first_byte_[static_cast<unsigned char>(text[0])];
  const auto shorter = std::find_if(bucket.begin(), bucket.end(),
                                    [&](const Entry& entry) { return entry.first.size() < text.size(); });
  bucket.insert(shorter, Entry(std::move(text), token));
}

const AddedTokens::Entry* AddedTokens::match(std::string_view rest) const {
  for (const Entry& entry : by_first_byte_[static_cast<unsigned char>(rest[0])])
    if (rest.starts_with(entry.first)) return &entry;
  return nullptr;
}

std::vector<Section> AddedTokens::split(std::string_view text) const {
  std::vector<Section> sections;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const Entry* const found = match(text.substr(at));
    if (!found) {
      ++at;
      continue;
    }
    const AddedToken& token = found->second;
    size_t begin = at, end = at + found->first.size();
    at = end;
    const bool touches_word = ends_with_word(text.substr(0, begin)) || begins_with_word(text.substr(end));
    if (token.single_word && touches_word) continue;
    if (token.lstrip) begin = std::max(begin - spaces_at_end(text.substr(0, begin)), done);
    if (token.rstrip) end += spaces_at_start(text.substr(end));
    if (begin > done) sections.push_back({text.substr(done, begin - done), nullptr});
    sections.push_back({text.substr(begin, end - begin), &token});
    done = end;
  }
  if (done < text.size()) sections.push_back({text.substr(done), nullptr});
  return sections;
}

std::string replaced(std::string_view text, const Replacement& step) {
  if (step.from.empty()) return text.empty() ? std::string() : step.to + std::string(text);
  std::string result;
  for (size_t found = text.find(step.from); found != std::string_view::npos; found = text.find(step.from)) {
    result.append(text.substr(0, found)).append(step.to);
    text.remove_prefix(found + step.from.size());
  }
  return result.append(text);
}

}  // namespace tokenizers

std::string TokenizerParts::normalized(std::string_view text) const {
  std::string result(text);
  for (const tokenizers::Replacement& step : normalizer) result = tokenizers::replaced(result, step);
  return result;
}

void TokenizerParts::add(const tokenizers::AddedToken& token) {
  added.emplace(token.id, token);
  if (token.normalized) {
    in_normalized_text.add(token, normalized(token.content));
  } else {
    in_raw_text.add(token, token.content);
  }
  vocabulary_size = std::max(vocabulary_size, token.id + 1);
}

}  // namespace mantissa
