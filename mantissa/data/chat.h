#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mantissa/data/dataset.h"
#include "mantissa/data/tokenizers/tokenizer.h"

// Conversations and instructions for fine-tuning: JSON lines, whose prompts have no loss.
namespace mantissa {

/// A piece of the text of a conversation.
struct ChatPiece {
  std::string text;
  bool is_trained = false;  ///< it is an answer, or the token that ends one
  bool operator==(const ChatPiece&) const = default;
};

/// The text of a conversation.
struct ChatText {
  std::vector<ChatPiece> pieces;
  /// The text has all special tokens. Otherwise the tokenizer adds those that its file adds to a text.
  bool has_special_tokens = false;
};

/// How a conversation becomes text: a row of the table of templates.
struct ChatTemplate {
  std::string name;
  std::string token;  ///< a token that only tokenizers of such models have; "": none
  std::string end;    ///< the token that ends an answer; "": that which ends a text
};

/// chatml, llama3, llama2 and plain, in the order in which "auto" tries them.
const std::vector<ChatTemplate>& chat_templates();

/// Returns the template of this name. "auto": the first one whose token the tokenizer has, otherwise plain.
/// Errors: c10::ValueError for an unknown name, with the names.
const ChatTemplate& find_chat_template(const std::string& name, const Tokenizer& tokenizer);

/// Returns the token that ends an answer without a template, by the tokenizer's own names; "" if it has none.
std::string chat_end_token(const Tokenizer& tokenizer);

/// Parses one line and writes it by the template:
///
///     {"messages": [{"role": "system", "content": "..."}, {"role": "user", ...}, {"role": "assistant", ...}]}
///     {"prompt": "...", "completion": "..."}
///     {"instruction": "...", "input": "...", "output": "..."}       with Alpaca's wording; "input" may be missing
///
/// `end` is the token that ends an answer where the template is plain, and in the second and third form. Other keys are
/// ignored.
/// Errors: c10::ValueError that begins with `where` for no JSON, none of these forms, a role that is none of the three, a system
///         message that is not the first, no answer, an answer before the first message of the user, and text that is not UTF-8.
ChatText parse_chat_line(std::string_view json, const ChatTemplate& chat_template, const std::string& end,
                         const std::string& where);

/// A message to a model, for generate().
struct ChatPrompt {
  std::vector<int64_t> ids;          ///< the message, and what begins an answer
  std::vector<int64_t> stop_tokens;  ///< what ends an answer
};

/// Writes a message of the user, up to where the answer begins, as parse_chat_line() does. `system` may be empty.
/// Errors: those of find_chat_template() and Tokenizer::encode().
ChatPrompt chat_prompt(const std::string& message, const std::string& system,
                       const std::string& chat_template, const Tokenizer& tokenizer);

struct ChatOptions {
  int64_t context = 1024;
  std::string chat_template = "auto";
};

/// Conversations as token ids, a row for each. Targets of all tokens but the answers' are -100, which losses ignore.
///
/// Shapes:  data int64 [n, context], target int64 [n, context], padded behind the end.
/// Memory:  9 bytes for each token.
/// Example: chat_test.cpp, Chat.OnlyAnswersHaveTargets
class ChatDataset final : public Dataset {
 public:
  int64_t size() const override { return static_cast<int64_t>(samples_.size()); }
  Batch get_batch(const at::Tensor& indices) const override;
  /// Returns how many conversations were cut after context + 1 tokens, and how many were left out because no answer was
  /// left.
  int64_t cut() const { return cut_; }
  int64_t dropped() const { return dropped_; }

 private:
  friend std::shared_ptr<const ChatDataset> parse_chat(std::string_view, const Tokenizer&, const ChatOptions&,
                                                       const std::string&);
  struct Sample {
    std::vector<int64_t> ids;
    std::vector<bool> is_trained;  ///< of each id
  };
  static Sample sample_of(const std::vector<ChatPiece>& pieces, bool adds_special_tokens,
                          const Tokenizer& tokenizer, int64_t context);
  void add(Sample sample);

  int64_t context_ = 0, pad_ = 0, cut_ = 0, dropped_ = 0;
  std::vector<Sample> samples_;
};

/// Encodes a file of JSON lines; empty lines are left out. `name` begins the errors.
/// Errors: those of parse_chat_line(), which name file and line; c10::ValueError for a context below 1, and if no
///         conversation is left.
std::shared_ptr<const ChatDataset> parse_chat(std::string_view lines, const Tokenizer& tokenizer,
                                              const ChatOptions& options, const std::string& name);

/// Errors: those of parse_chat(); c10::Error that names the file if it cannot be read, and c10::ValueError if it is empty.
std::shared_ptr<const ChatDataset> read_chat(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                             const ChatOptions& options = {});

}  // namespace mantissa
