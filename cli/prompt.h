#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/data/tokenizers/tokenizer.h"

namespace mantissa::cli {

/// A prompt as a model reads it, and the way back.
struct Prompt {
  at::Tensor tokens;  ///< [1, T], int64
  /// Returns how the next token of the answer is printed.
  std::function<std::string(int64_t token)> shown;
  /// Returns what is printed after the last token, such as the beginning of a character whose end did not come.
  std::function<std::string()> rest;
  /// The tokens that end the answer, beside the model's own.
  std::vector<int64_t> stop_tokens = {};
};

/// Returns the prompt of a text, whose tokens are its bytes. An answer is printed as bytes, and a token that is no byte as
/// U+FFFD.
Prompt byte_prompt(const std::string& text);

/// Returns the prompt of a text that goes through a tokenizer, and so does the answer.
/// Errors: those of Tokenizer::encode().
Prompt text_prompt(const std::string& text, const Tokenizer& tokenizer);

/// Returns the prompt of a message to a model that was trained on conversations by this template, beside a system message that may be
/// empty. The answer ends with the token that ends a message.
/// Errors: those of chat_prompt().
Prompt chat_message(const std::string& text, const std::string& system, const std::string& chat_template,
                    const Tokenizer& tokenizer);

/// Returns the prompt of a list of numbers, such as "1,15,7". An answer is printed as such a list.
Prompt token_prompt(const std::string& list);

/// Returns the numbers of a list such as "1,15,7".
/// Errors: c10::ValueError, which names `flag`, for what is no such list.
std::vector<int64_t> parse_tokens(const std::string& list, const std::string& flag);

}  // namespace mantissa::cli
