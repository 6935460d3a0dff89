#include "mantissa/data/tokenizers/tokenizer.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "mantissa/data/tokenizers/parts_internal.h"
#include "mantissa/data/tokenizers/utf8_internal.h"

namespace mantissa {
namespace {

using tokenizers::Cut;
using tokenizers::Decoding;
using tokenizers::Prepend;
using tokenizers::WordCache;

/// Words beyond these limits are encoded again whenever they occur.
constexpr size_t kMaxCachedWords = 100'000, kLongestCachedWord = 64;

/// Encodes the text between added tokens.
class SectionEncoder {
 public:
  SectionEncoder(const TokenizerParts& parts, std::vector<int64_t>& to) : parts_(parts), to_(to) {
    const std::lock_guard lock(parts.pool_mutex);
    if (parts.pool.empty()) {
      cache_ = std::make_unique<WordCache>();
    } else {
      cache_ = std::move(parts.pool.back());
      parts.pool.pop_back();
    }
  }
  SectionEncoder(const SectionEncoder&) = delete;
  SectionEncoder& operator=(const SectionEncoder&) = delete;
  ~SectionEncoder() {
    const std::lock_guard lock(parts_.pool_mutex);
    parts_.pool.push_back(std::move(cache_));
  }

  void encode(std::string_view text, bool is_first) { cut(text, is_first, 0); }

 private:
  /// Applies the cuts from number `step` on.
  void cut(std::string_view text, bool is_first, size_t step) {
    if (text.empty()) return;
    if (step == parts_.cuts.size()) return word(text);
    const Cut& how = parts_.cuts[step];
    if (how.kind == Cut::Kind::kMetaspace) return cut_metaspace(text, is_first, step);
    std::string prefixed;
    if (how.add_prefix_space && text[0] != ' ') text = prefixed.assign(1, ' ').append(text);
    if (!how.pattern) return cut(text, is_first, step + 1);
    how.pattern->cut(text, [&](std::string_view piece) {
      cut(piece, is_first, step + 1);
      is_first = false;
    });
  }

  void cut_metaspace(std::string_view text, bool is_first, size_t step) {
    const Cut& how = parts_.cuts[step];
    std::string spaced;
    for (const char c : text) c == ' ' ? spaced += how.space : spaced += c;
    const bool prepends = how.prepend == Prepend::kAlways || (how.prepend == Prepend::kFirst && is_first);
    if (prepends && !spaced.starts_with(how.space)) spaced.insert(0, how.space);
    const std::string_view all = spaced;
    size_t begin = 0;
    for (size_t next = 0; how.split && (next = all.find(how.space, begin + 1)) != std::string_view::npos;
         begin = next)
      cut(all.substr(begin, next - begin), is_first && begin == 0, step + 1);
    cut(all.substr(begin), is_first && begin == 0, step + 1);
  }

  void word(std::string_view text) {
    if (const auto found = cache_->find(text); found != cache_->end()) {
      to_.insert(to_.end(), found->second.begin(), found->second.end());
      return;
    }
    const size_t before = to_.size();
    encode_word(text);
    if (text.size() > kLongestCachedWord) return;
    if (cache_->size() >= kMaxCachedWords) cache_->clear();
    cache_->emplace(text, std::vector<int64_t>(to_.begin() + static_cast<std::ptrdiff_t>(before), to_.end()));
  }
  void encode_word(std::string_view text) {
    if (parts_.cuts.empty() || parts_.cuts.back().kind != Cut::Kind::kBytes)
      return parts_.bpe.encode(text, to_);
    std::string spelled;
    for (const char c : text) spelled += tokenizers::characters_of_bytes()[static_cast<unsigned char>(c)];
    parts_.bpe.encode(spelled, to_);
  }

  const TokenizerParts& parts_;
  std::vector<int64_t>& to_;
  std::unique_ptr<WordCache> cache_;
};

void check_utf8(std::string_view text) {
  const size_t invalid = tokenizers::find_invalid_utf8(text);
  TORCH_CHECK_VALUE(invalid == std::string_view::npos, "Tokenizer: the text is not UTF-8 at byte ", invalid,
                    "; convert it to UTF-8, or give text of bytes");
}

/// Appends `bytes` without the characters `strip` at the beginning, of which `count` are left out at most.
void strip_front(std::string& bytes, const std::string& strip, int64_t count, int64_t& stripped,
                 bool& has_begun) {
  while (!has_begun && stripped < count && bytes.starts_with(strip)) bytes.erase(0, strip.size()), ++stripped;
  has_begun = has_begun || !bytes.empty();
}

bool is_byte_token(const std::string& token) {
  const auto is_hex = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f');
  };
  return token.size() == 6 && token.starts_with("<0x") && token.back() == '>' && is_hex(token[3]) &&
         is_hex(token[4]);
}

}  // namespace

std::vector<int64_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  check_utf8(text);
  std::vector<int64_t> ids;
  if (add_special_tokens) ids = parts_->before;
  {
    SectionEncoder encoder(*parts_, ids);
    for (const auto& section : parts_->in_raw_text.split(text)) {
      if (section.token) {
        ids.push_back(section.token->id);
        continue;
      }
      const std::string normalized = parts_->normalized(section.text);
      for (const auto& part : parts_->in_normalized_text.split(normalized)) {
        const bool is_first = section.text.data() == text.data() && part.text.data() == normalized.data();
        if (part.token) {
          ids.push_back(part.token->id);
        } else {
          encoder.encode(part.text, is_first);
        }
      }
    }
  }
  if (add_special_tokens) ids.insert(ids.end(), parts_->after.begin(), parts_->after.end());
  return ids;
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids, bool skip_special_tokens) const {
  TokenText stream(*this, skip_special_tokens);
  std::string text;
  for (const int64_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

int64_t Tokenizer::vocabulary_size() const { return parts_->vocabulary_size; }

std::optional<int64_t> Tokenizer::id_of(std::string_view token) const {
  for (const auto& [id, added] : parts_->added)
    if (added.content == token) return id;
  const auto found = parts_->bpe.vocabulary.find(token);
  return found == parts_->bpe.vocabulary.end() ? std::nullopt : std::optional(found->second);
}

TokenText::TokenText(Tokenizer tokenizer, bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

std::string TokenText::push(int64_t id) {
  const TokenizerParts& parts = *tokenizer_.parts_;
  const auto added = parts.added.find(id);
  if (added != parts.added.end()) {
    if (skip_special_tokens_ && added->second.special) return "";
    take(added->second.content);
  } else {
    if (id < 0 || id >= static_cast<int64_t>(parts.bpe.tokens.size())) return "";
    const std::string& token = parts.bpe.tokens[static_cast<size_t>(id)];
    if (token.empty()) return "";
    take(token);
  }
  ++taken_;
  std::string text;
  tokenizers::move_utf8(waiting_, text, /*is_end=*/false);
  return text;
}

void TokenText::take(const std::string& token) {
  const Decoding& how = tokenizer_.parts_->decoding;
  if (how.kind == Decoding::Kind::kBytes) {
    waiting_ += tokenizers::bytes_of(token);
  } else if (how.kind == Decoding::Kind::kSpaces) {
    waiting_ += (taken_ > 0 ? " " : "") + token;
  } else if (how.kind == Decoding::Kind::kMetaspace) {
    const bool drops = taken_ == 0 && how.strips_first;
    waiting_ += tokenizers::replaced(token, {how.space, drops ? "" : " "});
  } else {
    std::string text = token;
    for (const auto& step : how.replacements) text = tokenizers::replaced(text, step);
    if (how.byte_fallback && is_byte_token(text)) {
      fallback_ += static_cast<char>(std::stoi(text.substr(3, 2), nullptr, 16));
      return;
    }
    text = take_fallback() + text;
    strip_front(text, how.strip, how.strip_count, stripped_, has_begun_);
    waiting_ += text;
  }
}

/// A run of bytes is text only as a whole: if it is not UTF-8, each of its bytes becomes U+FFFD.
std::string TokenText::take_fallback() {
  std::string text = std::exchange(fallback_, {});
  if (tokenizers::find_invalid_utf8(text) == std::string_view::npos) return text;
  std::string replaced;
  for (size_t i = 0; i < text.size(); ++i) replaced += tokenizers::kReplacement;
  return replaced;
}

std::string TokenText::finish() {
  const Decoding& how = tokenizer_.parts_->decoding;
  std::string rest = take_fallback(), text;
  strip_front(rest, how.strip, how.strip_count, stripped_, has_begun_);
  waiting_ += rest;
  tokenizers::move_utf8(waiting_, text, /*is_end=*/true);
  return text;
}

}  // namespace mantissa
