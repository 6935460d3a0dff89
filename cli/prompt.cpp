#include "cli/prompt.h"

#include <memory>
#include <sstream>

#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include "mantissa/core/parse_number.h"
#include "mantissa/data/chat.h"

namespace mantissa::cli {
namespace {

at::Tensor as_batch(const std::vector<int64_t>& tokens) {
  return at::tensor(tokens, at::TensorOptions(at::kLong)).unsqueeze(0);
}

Prompt tokenized(const std::vector<int64_t>& ids, const Tokenizer& tokenizer) {
  const auto stream = std::make_shared<TokenText>(tokenizer);
  return {as_batch(ids), [stream](int64_t token) { return stream->push(token); },
          [stream] { return stream->finish(); }};
}

}  // namespace

Prompt byte_prompt(const std::string& text) {
  const std::vector<int64_t> bytes = [&] {
    std::vector<int64_t> all;
    for (const char c : text) all.push_back(static_cast<unsigned char>(c));
    return all;
  }();
  return {as_batch(bytes),
          [](int64_t token) {
            return token < 256 ? std::string(1, static_cast<char>(token)) : std::string("\xEF\xBF\xBD");
          },
          [] { return std::string(); }};
}

Prompt text_prompt(const std::string& text, const Tokenizer& tokenizer) {
  return tokenized(tokenizer.encode(text), tokenizer);
}

Prompt chat_message(const std::string& text, const std::string& system, const std::string& chat_template,
                    const Tokenizer& tokenizer) {
  const ChatPrompt message = chat_prompt(text, system, chat_template, tokenizer);
  Prompt prompt = tokenized(message.ids, tokenizer);
  prompt.stop_tokens = message.stop_tokens;
  return prompt;
}

Prompt token_prompt(const std::string& list) {
  return {as_batch(parse_tokens(list, "--prompt-tokens")),
          [is_first = true](int64_t token) mutable {
            const std::string text = (is_first ? "" : ",") + std::to_string(token);
            is_first = false;
            return text;
          },
          [] { return std::string(); }};
}

std::vector<int64_t> parse_tokens(const std::string& list, const std::string& flag) {
  std::vector<int64_t> tokens;
  std::istringstream in(list);
  for (std::string word; std::getline(in, word, ',');) {
    const ParsedNumber<int64_t> number = parse_number<int64_t>(word);
    TORCH_CHECK_VALUE(number.value, flag, ": ", number.problem,
                      "; write whole numbers with commas, such as 1,15,7");
    tokens.push_back(*number.value);
  }
  TORCH_CHECK_VALUE(!list.ends_with(','), flag, ": '", list,
                    "' ends with a comma; write another number, or leave it out");
  return tokens;
}

}  // namespace mantissa::cli
