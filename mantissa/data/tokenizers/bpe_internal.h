#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mantissa::tokenizers {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

using Vocabulary = std::unordered_map<std::string, int64_t, StringHash, std::equal_to<>>;

/// Byte-pair encoding of one word: its characters are joined, always the pair of the lowest rank, as long as a rule joins
/// one.
///
/// Source: the algorithm of the `tokenizers` package, whose results it has.
struct Bpe {
  struct Merge {
    int64_t rank, id;  ///< the order of the rules; the token that the pair becomes
  };

  Vocabulary vocabulary;
  std::vector<std::string> tokens;  ///< by id; "" for an id that no token has
  std::unordered_map<uint64_t, Merge> merges;
  std::optional<int64_t> unknown;  ///< stands for a character without a token
  bool fuse_unknown = false;       ///< one `unknown` for a run of such characters
  bool byte_fallback = false;  ///< such a character becomes tokens <0xE2> for its bytes, if there are such
  bool ignore_merges = false;  ///< a word that is a token stays whole, even if no rules lead to it

  static uint64_t pair(int64_t left, int64_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint64_t>(right);
  }
  /// Appends the tokens of `word`, which is UTF-8.
  void encode(std::string_view word, std::vector<int64_t>& to) const;

 private:
  std::vector<int64_t> characters(std::string_view word) const;
  bool add_bytes(std::string_view character, std::vector<int64_t>& to) const;
};

}  // namespace mantissa::tokenizers
