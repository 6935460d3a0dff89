#include "mantissa/data/chat.h"

#include <filesystem>
#include <string>

#include <c10/util/Exception.h>

#include "cli/data/kinds.h"
#include "cli/fit_options.h"

namespace mantissa::cli {
namespace {

namespace fs = std::filesystem;

Tokenizer chat_tokenizer(const FitOptions& o) {
  TORCH_CHECK_VALUE(!o.tokenizer.empty(), "--data ", o.data,
                    " needs a tokenizer; give --tokenizer with the folder of the model");
  return load_tokenizer(o.tokenizer);
}

ModelInput chat_input(const Tokenizer& tokenizer, const FitOptions& o) {
  return {.kind = InputKind::kTokens, .vocabulary = tokenizer.vocabulary_size(), .context = o.context};
}

std::shared_ptr<const ChatDataset> read_conversations(const fs::path& path, const Tokenizer& tokenizer,
                                                      const FitOptions& o) {
  auto dataset = read_chat(path, tokenizer, {.context = o.context, .chat_template = o.chat_template});
  const int64_t all = dataset->size() + dataset->dropped();
  if (dataset->cut() > 0)
    TORCH_WARN("'", path.string(), "': ", dataset->cut(), " of ", all,
               " conversations are longer than --context ", o.context, " and are cut");
  if (dataset->dropped() > 0)
    TORCH_WARN("'", path.string(), "': ", dataset->dropped(), " of ", all,
               " conversations are left out, because no answer begins within --context ", o.context);
  return dataset;
}

/// A file has conversations to train on. A folder has such a file, and one to validate on.
Data load_chat(const std::string& name, const FitOptions& o) {
  const Tokenizer tokenizer = chat_tokenizer(o);
  const fs::path path = name;
  Data data{.name = "chat", .train = nullptr, .val = nullptr, .input = chat_input(tokenizer, o)};
  if (!is_folder(path)) {
    data.train = read_conversations(path, tokenizer, o);
    return data;
  }
  data.train = read_conversations(path / "train.jsonl", tokenizer, o);
  data.val = read_conversations(path / "val.jsonl", tokenizer, o);
  return data;
}

Data load_all_chat(const std::string& name, const FitOptions& o) {
  const Tokenizer tokenizer = chat_tokenizer(o);
  const fs::path path = name;
  return {.name = "chat",
          .train = nullptr,
          .val = read_conversations(is_folder(path) ? path / "val.jsonl" : path, tokenizer, o),
          .input = chat_input(tokenizer, o)};
}

}  // namespace

DataKind chat_kind() {
  return {.name = "chat",
          .argument = "FILE",
          .help = "conversations as JSON lines",
          .input = InputKind::kTokens,
          .load = &load_chat,
          .load_all = &load_all_chat,
          .token_input = [](const FitOptions& o) { return chat_input(chat_tokenizer(o), o); },
          .has_val_part = &is_folder,
          .options = {"context", "tokenizer", "chat_template"}};
}

}  // namespace mantissa::cli
