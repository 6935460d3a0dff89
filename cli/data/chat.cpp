#include "mantissa/data/chat.h"

#include <filesystem>
#include <string>
#include <system_error>

#include <c10/util/Exception.h>

#include "cli/data/kinds.h"
#include "cli/fit_options.h"

namespace mantissa::cli {
namespace {

namespace fs = std::filesystem;

Tokenizer tokenizer_of(const FitOptions& o) {
  TORCH_CHECK_VALUE(!o.tokenizer.empty(), "--data ", o.data,
                    " needs a tokenizer; give --tokenizer with the folder of the model");
  return load_tokenizer(o.tokenizer);
}

ModelInput input_of(const Tokenizer& tokenizer, const FitOptions& o) {
  return {.kind = InputKind::kTokens, .vocabulary = tokenizer.vocabulary_size(), .context = o.context};
}

std::shared_ptr<const ChatDataset> read(const fs::path& path, const Tokenizer& tokenizer,
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

Data load(const std::string& name, const FitOptions& o) {
  const Tokenizer tokenizer = tokenizer_of(o);
  const fs::path path = name;
  std::error_code ignored;
  Data data{.name = "chat", .train = nullptr, .val = nullptr, .input = input_of(tokenizer, o)};
  if (!fs::is_directory(path, ignored)) {
    data.train = read(path, tokenizer, o);
    return data;
  }
  data.train = read(path / "train.jsonl", tokenizer, o);
  data.val = read(path / "val.jsonl", tokenizer, o);
  return data;
}

Data load_all(const std::string& name, const FitOptions& o) {
  const Tokenizer tokenizer = tokenizer_of(o);
  const fs::path path = name;
  std::error_code ignored;
  return {.name = "chat",
          .train = nullptr,
          .val = read(fs::is_directory(path, ignored) ? path / "val.jsonl" : path, tokenizer, o),
          .input = input_of(tokenizer, o)};
}

}  // namespace

DataKind chat_kind() {
  return {.name = "chat",
          .argument = "FILE",
          .help = "conversations as JSON lines",
          .input = InputKind::kTokens,
          .load = &load,
          .load_all = &load_all,
          .token_input = [](const FitOptions& o) { return input_of(tokenizer_of(o), o); }};
}

}  // namespace mantissa::cli
