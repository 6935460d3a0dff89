#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mantissa {

struct TokenizerParts;
class TokenText;

/// Turns text into the token ids of GPT-2 or Llama, and back, with the results of the `tokenizers` package.
///
/// It reads what these two families use: byte-pair encoding, over bytes with GPT-2's or Llama 3's pattern, or over
/// characters with byte fallback as in Llama 2. It refuses a file that asks for anything else, and says what.
///
/// Threads: several threads may use one tokenizer at once.
/// Source:  Sennrich et al. 2016, arXiv:1508.07909; Radford et al. 2019, section 2.2.
class Tokenizer {
 public:
  /// Returns the ids of `text`, which must be UTF-8. With `add_special_tokens` the file's template adds its own, such as
  /// the one that begins a text.
  /// Errors: c10::ValueError that names the position of a byte that is not UTF-8; c10::Error if the pattern of the file
  ///         takes too many steps on this text.
  std::vector<int64_t> encode(std::string_view text, bool add_special_tokens = true) const;
  /// Returns the text of `ids`. Ids that no token has are left out, and bytes that are not UTF-8 become U+FFFD.
  std::string decode(const std::vector<int64_t>& ids, bool skip_special_tokens = true) const;
  /// Returns the largest id + 1: the vocabulary that a model needs at least.
  int64_t vocabulary_size() const;
  /// Returns the id of a token as its file spells it, such as "<|endoftext|>".
  std::optional<int64_t> id_of(std::string_view token) const;

 private:
  friend class TokenText;
  friend Tokenizer parse_tokenizer(std::string_view json, const std::string& file);
  friend Tokenizer parse_gpt2_tokenizer(std::string_view vocab, const std::string& vocab_file,
                                        std::string_view merges, const std::string& merges_file);
  explicit Tokenizer(std::shared_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}

  std::shared_ptr<const TokenizerParts> parts_;
};

/// Decodes one token after another, for text that is shown while it is made. All pieces together are what
/// Tokenizer::decode() returns.
class TokenText {
 public:
  explicit TokenText(Tokenizer tokenizer, bool skip_special_tokens = true);
  /// Returns the text that is certain after this token. An incomplete UTF-8 character waits for its end, and so does a run
  /// of tokens such as <0xE2> for single bytes.
  std::string push(int64_t id);
  /// Returns what still waits. An incomplete character becomes U+FFFD.
  std::string finish();

 private:
  void take(const std::string& token);
  std::string take_fallback();

  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  int64_t taken_ = 0, stripped_ = 0;  ///< tokens; characters that were left out at the beginning
  bool has_begun_ = false;            ///< a character of the text was kept
  std::string waiting_, fallback_;    ///< bytes of the text; bytes of a run of tokens for single bytes
};

/// Loads a tokenizer from tokenizer.json, from GPT-2's vocab.json with merges.txt beside it, or from a folder that has
/// either. tokenizer.json goes first.
/// Errors: c10::Error that names a file that cannot be read; those of parse_tokenizer() and parse_gpt2_tokenizer().
Tokenizer load_tokenizer(const std::filesystem::path& path);

/// Returns the tokenizer of the text of a tokenizer.json. `file` is its name in messages.
/// Errors: c10::ValueError that names the file, for what is no such JSON, is inconsistent, or cannot be computed here.
Tokenizer parse_tokenizer(std::string_view json, const std::string& file);

/// Returns GPT-2's tokenizer with these tokens and merges. <|endoftext|> is special, as in transformers.
/// Errors: c10::ValueError that names the file, for one that is no such file, or if the two do not fit together.
Tokenizer parse_gpt2_tokenizer(std::string_view vocab, const std::string& vocab_file, std::string_view merges,
                               const std::string& merges_file);

}  // namespace mantissa
