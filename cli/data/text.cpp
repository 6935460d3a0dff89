#include "mantissa/data/text.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "cli/data/kinds.h"
#include "cli/encoded_text.h"
#include "cli/fit_options.h"
#include "mantissa/data/tokenizers/tokenizer.h"

namespace mantissa::cli {
namespace {

/// What a text consists of: its bytes, or its token ids where there is a tokenizer.
struct Text {
  at::Tensor symbols;
  std::string words;  ///< for messages: "bytes" or "tokens"
  ModelInput input;
};

std::optional<Tokenizer> text_tokenizer(const FitOptions& o) {
  return o.tokenizer.empty() ? std::nullopt : std::optional(load_tokenizer(o.tokenizer));
}

ModelInput text_input(const std::optional<Tokenizer>& tokenizer, const FitOptions& o) {
  ModelInput input{.kind = InputKind::kTokens, .context = o.context};
  if (tokenizer) input.vocabulary = tokenizer->vocabulary_size();
  return input;
}

Text read_text(const std::string& path, const FitOptions& o) {
  const std::optional<Tokenizer> tokenizer = text_tokenizer(o);
  if (!tokenizer) return {load_text(path), "bytes", text_input(tokenizer, o)};
  std::vector<int64_t> ids = encode_text_file(path, *tokenizer).ids;
  const auto count = static_cast<int64_t>(ids.size());
  return {at::from_blob(ids.data(), {count}, at::TensorOptions(at::kLong)).to(at::kInt), "tokens",
          text_input(tokenizer, o)};
}

Data load_split_text(const std::string& path, const FitOptions& o) {
  const int64_t context = o.context;
  const Text text = read_text(path, o);
  const int64_t size = text.symbols.size(0), needed = context + 1;
  const int64_t held = std::llround(static_cast<double>(size) * o.val_fraction);
  TORCH_CHECK_VALUE(std::min(held, size - held) >= needed, "text file '", path, "': --val-fraction ",
                    o.val_fraction, " splits its ", size, " ", text.words, " into ", size - held,
                    " to train on and ", held, " to validate, but each needs ", needed,
                    "; give a longer file or another --val-fraction");
  const auto [train, held_out] = split_text(text.symbols, o.val_fraction);
  return {"text", std::make_shared<TextDataset>(train, context),
          std::make_shared<TextDataset>(held_out, context, /*stride=*/context), text.input,
          /*draws_windows=*/true};
}

Data load_whole_text(const std::string& path, const FitOptions& o) {
  const Text text = read_text(path, o);
  TORCH_CHECK_VALUE(text.symbols.size(0) > o.context, "text file '", path, "' has ", text.symbols.size(0),
                    " ", text.words, ", but a window needs ", o.context + 1, "; give a longer file");
  return {"text", nullptr, std::make_shared<TextDataset>(text.symbols, o.context, /*stride=*/o.context),
          text.input};
}

}  // namespace

DataKind text_kind() {
  return {.name = "text",
          .argument = "FILE",
          .help = "its bytes, or its tokens with --tokenizer",
          .input = InputKind::kTokens,
          .load = &load_split_text,
          .load_all = &load_whole_text,
          .token_input = [](const FitOptions& o) { return text_input(text_tokenizer(o), o); },
          .options = {"context", "tokenizer"}};
}

}  // namespace mantissa::cli
