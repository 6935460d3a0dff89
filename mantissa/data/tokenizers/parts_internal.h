#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mantissa/data/tokenizers/bpe_internal.h"
#include "mantissa/data/tokenizers/pattern_internal.h"

namespace mantissa {
namespace tokenizers {

/// A token that is found in the text before anything else happens to it.
struct AddedToken {
  int64_t id = 0;
  std::string content;
  bool single_word = false;             ///< only between characters that belong to no word
  bool lstrip = false, rstrip = false;  ///< takes the white space before or after it
  bool normalized = true;               ///< found in the normalized text, in its normalized form
  bool special = false;
};

/// A part of a text: an added token, or text between two.
struct Section {
  std::string_view text;
  const AddedToken* token;  ///< null: text
};

/// Finds added tokens: the leftmost, and of those the longest.
class AddedTokens {
 public:
  /// Of tokens with an equal `text`, the first is found.
  void add(const AddedToken& token, std::string text);
  std::vector<Section> split(std::string_view text) const;

 private:
  using Entry = std::pair<std::string, AddedToken>;
  const Entry* match(std::string_view rest) const;

  std::array<std::vector<Entry>, 256> by_first_byte_;  ///< the longest text first
};

/// Replaces text in all of a section.
struct Replacement {
  std::string from;  ///< "": `to` goes before a section that is not empty
  std::string to;
};

std::string replaced(std::string_view text, const Replacement& step);

enum class Prepend { kAlways, kFirst, kNever };

/// One step that cuts a section into words.
struct Cut {
  enum class Kind { kPattern, kBytes, kMetaspace } kind;
  std::shared_ptr<const Pattern> pattern = {};  ///< null: none
  bool add_prefix_space = false;                ///< of kBytes
  std::string space = {};                       ///< of kMetaspace: what stands for a space
  Prepend prepend = Prepend::kAlways;
  bool split = true;  ///< cuts before each `space`
};

/// How tokens become text.
struct Decoding {
  enum class Kind { kSpaces, kBytes, kMetaspace, kSteps } kind = Kind::kSpaces;
  std::string space;  ///< of kMetaspace
  bool strips_first = true;
  // kSteps: replacements, then byte fallback, then the removal of characters at the beginning.
  std::vector<Replacement> replacements;
  bool byte_fallback = false;
  std::string strip;
  int64_t strip_count = 0;
};

/// Maps bytes to the characters by which a vocabulary over bytes spells them, and back.
/// Source: Radford et al. 2019, bytes_to_unicode().
const std::array<std::string, 256>& characters_of_bytes();
/// Returns the bytes of a token, or the token itself if it has another character.
std::string bytes_of(const std::string& token);

/// Words that were encoded before. It is taken from a pool, so that threads do not wait for each other.
using WordCache = std::unordered_map<std::string, std::vector<int64_t>, StringHash, std::equal_to<>>;

}  // namespace tokenizers

struct TokenizerParts {
  tokenizers::Bpe bpe;
  std::unordered_map<int64_t, tokenizers::AddedToken> added;
  tokenizers::AddedTokens in_raw_text, in_normalized_text;
  std::vector<tokenizers::Replacement> normalizer;
  std::vector<tokenizers::Cut> cuts;
  std::vector<int64_t> before, after;  ///< the template's tokens around a text
  tokenizers::Decoding decoding;
  int64_t vocabulary_size = 0;

  mutable std::mutex pool_mutex;
  mutable std::vector<std::unique_ptr<tokenizers::WordCache>> pool;

  std::string normalized(std::string_view text) const;
  /// Registers a token, of which the normalizer must be known.
  void add(const tokenizers::AddedToken& token);
};

}  // namespace mantissa
