#include <cstdint>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/encoded_text.h"
#include "cli/errors.h"
#include "cli/fit_flags.h"
#include "cli/json_output.h"
#include "cli/outputs.h"
#include "mantissa/data/token_file.h"
#include "mantissa/data/tokenizers/tokenizer.h"

namespace mantissa::cli {
namespace {

struct TokenizeCommand {
  std::string text, tokenizer, output, json;
  bool has_no_header = false, overwrite = false, quiet = false;
};

/// Ids of 16 bits where the vocabulary allows it.
TokenFormat format_for(const TokenizeCommand& c, int64_t vocabulary) {
  const bool is_wide = vocabulary > 65536;
  if (c.has_no_header) return is_wide ? TokenFormat::kUint32 : TokenFormat::kUint16;
  return is_wide ? TokenFormat::kLlama3 : TokenFormat::kGpt2;
}

void run_tokenize(const TokenizeCommand& c) {
  check_outputs({{c.output, c.overwrite}, {c.json}}, {c.text, c.tokenizer});
  const Tokenizer tokenizer = load_tokenizer(c.tokenizer);
  const int64_t vocabulary = tokenizer.vocabulary_size();
  TORCH_CHECK_VALUE(!c.has_no_header || vocabulary <= 65536, "--no-header: the ids of ", vocabulary,
                    " tokens need 32 bits, which a file without a header cannot say; leave it out");
  auto [size, ids] = encode_text_file(c.text, tokenizer);
  TORCH_CHECK_VALUE(!ids.empty(), "'", c.text, "' has no text that the tokenizer knows; give another");
  const auto count = static_cast<int64_t>(ids.size());
  write_token_file(c.output, at::from_blob(ids.data(), {count}, at::TensorOptions(at::kLong)),
                   format_for(c, vocabulary));
  write_json({{"text", c.text},
              {"output", c.output},
              {"bytes", size},
              {"tokens", count},
              {"vocabulary", vocabulary}},
             c.json);
  if (c.quiet) return;
  print_to_stderr(
      fmt::format("{}: {} tokens of {} bytes, vocabulary {}\n", c.output, count, size, vocabulary));
}

}  // namespace

void add_tokenize(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("tokenize", "Encodes a text as a file of token ids");
  const auto command = std::make_shared<TokenizeCommand>();
  TokenizeCommand& c = *command;
  sub->add_option("text", c.text, "a text file in UTF-8")->required()->option_text("TEXT");
  sub->add_option("--tokenizer", c.tokenizer,
                  "tokenizer.json, vocab.json beside merges.txt, or a folder that has either")
      ->required()
      ->option_text("PATH");
  sub->add_option("--output,-o", c.output, "the file to write, for --data tokens:FILE")
      ->required()
      ->option_text("FILE");
  sub->add_flag("--no-header", c.has_no_header, "writes only the ids, as nanoGPT does");
  sub->add_flag("--overwrite", c.overwrite, "replace an existing output file");
  add_json_flag(*sub, c.json);
  sub->add_flag("--quiet", c.quiet, "no summary on standard error");
  sub->footer(
      "No tokens are added around the text. Where it names special tokens, they are encoded as such.");
  sub->callback([command] { run_tokenize(*command); });
}

}  // namespace mantissa::cli
