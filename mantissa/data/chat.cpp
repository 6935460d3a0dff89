#include "mantissa/data/chat.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "mantissa/core/suggest.h"
#include "mantissa/data/read_file_internal.h"
#include "mantissa/io/json_internal.h"

namespace mantissa {
namespace {

using Json = nlohmann::json;

constexpr int64_t kIgnored = -100;  // torch's ignore_index

struct Message {
  std::string role, content;
};

// Each template of models that are public.

std::vector<ChatPiece> chatml(const std::vector<Message>& messages) {
  std::vector<ChatPiece> pieces;
  for (const Message& message : messages) {
    const bool is_answer = message.role == "assistant";
    pieces.push_back({"<|im_start|>" + message.role + "\n", false});
    pieces.push_back({message.content + "<|im_end|>", is_answer});
    pieces.push_back({"\n", false});
  }
  return pieces;
}

std::vector<ChatPiece> llama3(const std::vector<Message>& messages) {
  std::vector<ChatPiece> pieces = {{"<|begin_of_text|>", false}};
  for (const Message& message : messages) {
    pieces.push_back({"<|start_header_id|>" + message.role + "<|end_header_id|>\n\n", false});
    pieces.push_back({message.content + "<|eot_id|>", message.role == "assistant"});
  }
  return pieces;
}

std::vector<ChatPiece> llama2(const std::vector<Message>& messages) {
  std::vector<ChatPiece> pieces;
  std::string system;
  for (const Message& message : messages) {
    if (message.role == "system") {
      system = "<<SYS>>\n" + message.content + "\n<</SYS>>\n\n";
    } else if (message.role == "user") {
      pieces.push_back({"<s>[INST] " + std::exchange(system, "") + message.content + " [/INST]", false});
    } else {
      pieces.push_back({" " + message.content + " </s>", true});
    }
  }
  return pieces;
}

std::vector<ChatPiece> plain(const std::vector<Message>& messages, const std::string& end) {
  std::vector<ChatPiece> pieces;
  for (const Message& message : messages) {
    std::string role = message.role;
    role[0] = static_cast<char>(role[0] - 'a' + 'A');
    pieces.push_back({"### " + role + ":\n", false});
    const bool is_answer = message.role == "assistant";
    pieces.push_back({message.content + (is_answer ? end : ""), is_answer});
    pieces.push_back({"\n\n", false});
  }
  return pieces;
}

/// Source: Taori et al. 2023, Stanford Alpaca.
std::string alpaca_prompt(const std::string& instruction, const std::string& input) {
  return input.empty() ? "Below is an instruction that describes a task. Write a response that appropriately "
                         "completes the request.\n\n### Instruction:\n" +
                             instruction + "\n\n### Response:\n"
                       : "Below is an instruction that describes a task, paired with an input that provides "
                         "further context. Write a response that appropriately completes the request.\n\n"
                         "### Instruction:\n" +
                             instruction + "\n\n### Input:\n" + input + "\n\n### Response:\n";
}

/// A line of the file, as JSON.
class Line {
 public:
  Line(std::string_view json, const std::string& where) : where_(where) {
    root_ = parse_json(json, /*max_depth=*/64, [&](const std::string& what) { fail(what); });
    if (!root_.is_object()) fail("is no JSON object");
  }
  bool has(const char* key) const { return root_.contains(key); }
  std::string text(const char* key) const { return text_of(root_, key); }
  std::vector<Message> messages() const {
    const Json& list = root_.at("messages");
    if (!list.is_array() || list.empty()) fail("has messages that are no list, or an empty one");
    std::vector<Message> messages;
    for (const Json& each : list) {
      if (!each.is_object()) fail("has a message that is no object");
      messages.push_back({text_of(each, "role"), text_of(each, "content")});
      const std::string& role = messages.back().role;
      if (role != "system" && role != "user" && role != "assistant")
        fail("has the role '" + fit_for_message(role) + "'; use system, user or assistant");
      if (role == "system" && messages.size() > 1) fail("has a system message that is not the first one");
    }
    for (const Message& message : messages) {
      if (message.role == "user") break;
      if (message.role == "assistant") fail("has an answer before the first message of the user");
    }
    const auto is_answer = [](const Message& message) { return message.role == "assistant"; };
    if (std::none_of(messages.begin(), messages.end(), is_answer)) fail("has no message of the assistant");
    return messages;
  }
  [[noreturn]] void fail(const std::string& what) const { C10_THROW_ERROR(ValueError, where_ + " " + what); }

 private:
  std::string text_of(const Json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_string()) fail(std::string("has no text '") + key + "'");
    return found->get<std::string>();
  }
  std::string where_;
  Json root_;
};

ChatText written(const std::vector<Message>& messages, const ChatTemplate& chat_template,
                 const std::string& end) {
  if (chat_template.name == "chatml") return {chatml(messages), true};
  if (chat_template.name == "llama3") return {llama3(messages), true};
  if (chat_template.name == "llama2") return {llama2(messages), true};
  return {plain(messages, end), false};
}

size_t common_prefix(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

const std::vector<ChatTemplate>& chat_templates() {
  static const std::vector<ChatTemplate> table = {{"chatml", "<|im_start|>", "<|im_end|>"},
                                                  {"llama3", "<|start_header_id|>", "<|eot_id|>"},
                                                  {"llama2", "<s>", "</s>"},
                                                  {"plain", "", ""}};
  return table;
}

const ChatTemplate& find_chat_template(const std::string& name, const Tokenizer& tokenizer) {
  std::vector<std::string> names = {"auto"};
  for (const ChatTemplate& each : chat_templates()) {
    if (name == each.name) return each;
    if (name == "auto" && (each.token.empty() || tokenizer.id_of(each.token))) return each;
    names.push_back(each.name);
  }
  TORCH_CHECK_VALUE(false, "chat template '", name, "' is unknown", did_you_mean(name, names),
                    "; choose from ", join_names(names));
}

std::string chat_end_token(const Tokenizer& tokenizer) {
  for (const char* const token : {"<|endoftext|>", "</s>", "<|eot_id|>", "<|end_of_text|>", "<|im_end|>"})
    if (tokenizer.id_of(token)) return token;
  return "";
}

ChatText parse_chat_line(std::string_view json, const ChatTemplate& chat_template, const std::string& end,
                         const std::string& where) {
  const Line line(json, where);
  if (line.has("messages")) return written(line.messages(), chat_template, end);
  if (line.has("prompt"))
    return {{{line.text("prompt"), false}, {line.text("completion") + end, true}}, false};
  if (line.has("instruction"))
    return {{{alpaca_prompt(line.text("instruction"), line.has("input") ? line.text("input") : ""), false},
             {line.text("output") + end, true}},
            false};
  line.fail("has neither messages, nor prompt and completion, nor instruction and output");
}

ChatPrompt chat_prompt(const std::string& message, const std::string& system,
                       const std::string& chat_template, const Tokenizer& tokenizer) {
  const ChatTemplate& chosen = find_chat_template(chat_template, tokenizer);
  const std::string end = chosen.end.empty() ? chat_end_token(tokenizer) : chosen.end;
  std::vector<Message> messages = {{"user", message}, {"assistant", ""}};
  if (!system.empty()) messages.insert(messages.begin(), {"system", system});
  const auto [pieces, has_special_tokens] = written(messages, chosen, end);
  std::string text;
  for (const ChatPiece& piece : pieces) {
    if (piece.is_trained) break;
    text += piece.text;
  }
  ChatPrompt prompt{tokenizer.encode(text, !has_special_tokens), {}};
  if (const std::optional<int64_t> stop = tokenizer.id_of(end)) prompt.stop_tokens.push_back(*stop);
  return prompt;
}

ChatDataset::Sample ChatDataset::sample_of(const std::vector<ChatPiece>& pieces, bool adds_special_tokens,
                                           const Tokenizer& tokenizer, int64_t context) {
  std::string text;
  for (const ChatPiece& piece : pieces) text += piece.text;
  Sample sample{tokenizer.encode(text, adds_special_tokens), {}};
  sample.is_trained.resize(sample.ids.size());
  // A token belongs to the answer if the text before the answer has all tokens before it.
  size_t begin = 0, length = 0;
  for (size_t piece = 0; piece < pieces.size() && begin <= static_cast<size_t>(context); ++piece) {
    length += pieces[piece].text.size();
    const bool is_last = piece + 1 == pieces.size();
    if (!is_last && pieces[piece + 1].is_trained == pieces[piece].is_trained) continue;
    const auto until_here = std::string_view(text).substr(0, length);
    const size_t until = is_last
                             ? sample.ids.size()
                             : common_prefix(tokenizer.encode(until_here, adds_special_tokens), sample.ids);
    for (size_t i = begin; i < until; ++i) sample.is_trained[i] = pieces[piece].is_trained;
    begin = std::max(begin, until);
  }
  return sample;
}

void ChatDataset::add(Sample sample) {
  const auto most = static_cast<size_t>(context_) + 1;
  const bool is_long = sample.ids.size() > most;
  if (is_long) {
    sample.ids.resize(most);
    sample.is_trained.resize(most);
    sample.ids.shrink_to_fit(), sample.is_trained.shrink_to_fit();
  }
  // The first token is never a target.
  const bool has_target =
      !sample.ids.empty() &&
      std::find(sample.is_trained.begin() + 1, sample.is_trained.end(), true) != sample.is_trained.end();
  if (has_target) {
    if (is_long) ++cut_;
    samples_.push_back(std::move(sample));
  } else {
    ++dropped_;
  }
}

Batch ChatDataset::get_batch(const at::Tensor& indices) const {
  check_indices(indices, size(), "ChatDataset");
  const at::Tensor row = indices.contiguous();
  const int64_t n = row.numel();
  const at::TensorOptions options = at::TensorOptions(at::kLong).device(at::kCPU);
  const at::Tensor data = at::full({n, context_}, pad_, options),
                   target = at::full({n, context_}, kIgnored, options);
  for (int64_t i = 0; i < n; ++i) {
    const Sample& sample = samples_[static_cast<size_t>(row.const_data_ptr<int64_t>()[i])];
    auto* const ids = data.mutable_data_ptr<int64_t>() + i * context_;
    auto* const wanted = target.mutable_data_ptr<int64_t>() + i * context_;
    for (size_t at = 0; at + 1 < sample.ids.size(); ++at) {
      ids[at] = sample.ids[at];
      if (sample.is_trained[at + 1]) wanted[at] = sample.ids[at + 1];
    }
  }
  return {data, target, {}};
}

std::shared_ptr<const ChatDataset> parse_chat(std::string_view lines, const Tokenizer& tokenizer,
                                              const ChatOptions& options, const std::string& name) {
  TORCH_CHECK_VALUE(options.context > 0, "'", name, "': a context of ", options.context,
                    " tokens; give 1 at least");
  const ChatTemplate& chat_template = find_chat_template(options.chat_template, tokenizer);
  const std::string end = chat_end_token(tokenizer);
  const auto dataset = std::make_shared<ChatDataset>();
  dataset->context_ = options.context;
  dataset->pad_ = end.empty() ? 0 : *tokenizer.id_of(end);
  int64_t number = 0;
  while (!lines.empty()) {
    ++number;
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = c10::str("'", name, "', line ", number);
    const auto [pieces, has_special_tokens] = parse_chat_line(line, chat_template, end, where);
    try {
      dataset->add(ChatDataset::sample_of(pieces, !has_special_tokens, tokenizer, options.context));
    } catch (c10::Error& error) {
      error.add_context("reading " + where);
      throw;
    }
  }
  TORCH_CHECK_VALUE(dataset->size() > 0, "'", name, "' has no conversation with an answer within ",
                    options.context, " tokens; give other data or a longer context");
  return dataset;
}

std::shared_ptr<const ChatDataset> read_chat(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                             const ChatOptions& options) {
  return parse_chat(read_file(path, "file of conversations"), tokenizer, options, path.string());
}

}  // namespace mantissa
