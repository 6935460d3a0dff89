#include "mantissa/models/generate.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/errors.h"
#include "cli/fit_flags.h"
#include "cli/number_flag.h"
#include "cli/prompt.h"
#include "cli/train_run.h"
#include "cli/trained_model.h"
#include "mantissa/core/device.h"
#include "mantissa/data/chat.h"
#include "mantissa/data/loader.h"
#include "mantissa/data/tokenizers/tokenizer.h"
#include "mantissa/trainer/loop/interrupt.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::cli {
namespace {

struct GenerateCommand {
  TrainedModelCommand model;
  std::optional<std::string> prompt, prompt_tokens, stop_tokens, tokenizer, system;
  bool is_chat = false;
  uint64_t seed = 1;
  GenerateOptions options;
  std::string json;
};

/// Generates text in predict_step(), so that Trainer::predict() sets up the device and the precision.
class GenerateTask final : public ClassificationTask {
 public:
  GenerateTask(const TrainedModel& run, CausalModel& model, const GenerateOptions& options)
      : ClassificationTask(make_task(run.options, run.model, /*steps=*/1)),
        model_(model),
        options_(options) {}
  c10::IValue predict_step(const Batch& batch, int64_t /*batch_index*/) override {
    made_ = generate(model_, batch.data, options_);
    return {};
  }
  const std::optional<Generated>& made() const { return made_; }

 private:
  CausalModel& model_;
  const GenerateOptions& options_;
  std::optional<Generated> made_;
};

/// Returns the options in the run's config.yaml; nothing if `folder` is not a run's folder.
std::optional<OptionValues> find_run_config(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / "config.yaml")) return std::nullopt;
  return read_run_config(folder);
}

/// Returns the value of a text option of the run; "" if there is no run.
std::string text_option(const std::optional<OptionValues>& config, const char* option) {
  const auto* const value = config ? config->get_if<std::string>(option) : nullptr;
  return value ? *value : "";
}

/// Returns the tokenizer of `--tokenizer`, or that of a run or of a public model's folder; nothing if the model reads
/// bytes.
std::optional<Tokenizer> find_tokenizer(const GenerateCommand& c, const std::optional<OptionValues>& config) {
  if (c.tokenizer) return load_tokenizer(*c.tokenizer);
  const std::filesystem::path folder = c.model.folder;
  TORCH_CHECK_VALUE(std::filesystem::exists(folder), "'", c.model.folder,
                    "' does not exist; give a run's folder, or one with config.json and weights");
  if (config) {
    const std::string used = text_option(config, "tokenizer");
    if (used.empty()) {
      const std::string data = text_option(config, "data");
      TORCH_CHECK_VALUE(
          data.starts_with("text:"), "the run in '", c.model.folder, "' was trained on --data ", data,
          ", which does not record its tokenizer; give the tokenizer as --tokenizer, or the ids "
          "of a text as --prompt-tokens");
      return std::nullopt;
    }
    TORCH_CHECK_VALUE(std::filesystem::exists(used), "the run in '", c.model.folder,
                      "' reads text with the tokenizer '", used,
                      "', which no longer exists; give its new path as --tokenizer");
    return load_tokenizer(used);
  }
  TORCH_CHECK_VALUE(
      std::filesystem::exists(folder / "tokenizer.json") || std::filesystem::exists(folder / "vocab.json"),
      "--prompt: '", c.model.folder,
      "' is no run, and has no tokenizer; give --tokenizer, or the ids of a text as --prompt-tokens");
  return load_tokenizer(folder);
}

Prompt read_prompt(const GenerateCommand& c, const std::optional<OptionValues>& config) {
  if (c.prompt.has_value() == c.prompt_tokens.has_value())
    throw UsageError("give either --prompt TEXT or --prompt-tokens LIST");
  return usage([&] {
    TORCH_CHECK_VALUE(!c.tokenizer || c.prompt,
                      "--tokenizer encodes the text of --prompt; give --prompt, or leave out --tokenizer");
    TORCH_CHECK_VALUE(!c.is_chat || c.prompt,
                      "--chat is for the message of --prompt; give --prompt, or leave out --chat");
    TORCH_CHECK_VALUE(!c.system || c.is_chat,
                      "--system is the first message of a conversation; give --chat, or leave out --system");
    if (c.prompt_tokens) return token_prompt(*c.prompt_tokens);
    TORCH_CHECK_VALUE(!c.prompt->empty(), "--prompt is empty; give at least one character");
    const std::optional<Tokenizer> tokenizer = find_tokenizer(c, config);
    TORCH_CHECK_VALUE(
        tokenizer || !c.is_chat,
        "--chat needs a tokenizer, and the run has none; give --tokenizer, or leave out --chat");
    if (c.is_chat) {
      const std::string used = text_option(config, "chat_template");
      return chat_message(*c.prompt, c.system.value_or(""), used.empty() ? "auto" : used, *tokenizer);
    }
    if (!tokenizer) return byte_prompt(*c.prompt);
    Prompt prompt = text_prompt(*c.prompt, *tokenizer);
    if (text_option(config, "data").starts_with("chat:"))
      if (const auto end = tokenizer->id_of(chat_end_token(*tokenizer))) prompt.stop_tokens.push_back(*end);
    return prompt;
  });
}

/// Returns the checked generation options, including --seed and --stop-tokens.
GenerateOptions generation_options(const GenerateCommand& c) {
  GenerateOptions options = c.options;
  options.seed = c.seed;
  usage([&] {
    check_sampling_options(options.sampling);
    TORCH_CHECK_VALUE(options.max_new_tokens > 0, "--max-new-tokens ", options.max_new_tokens,
                      ": there is nothing to write; choose a number above 0");
    if (!c.stop_tokens) return;
    options.stop_tokens =
        *c.stop_tokens == "none" ? std::vector<int64_t>() : parse_tokens(*c.stop_tokens, "--stop-tokens");
  });
  return options;
}

std::vector<int64_t> row_of(const at::Tensor& tokens) {
  const at::Tensor row = tokens[0].contiguous();
  return {row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + row.numel()};
}

Json to_json(const TrainedModel& run, const Trainer& trainer, const at::Tensor& prompt, const Generated& made,
             const std::string& text) {
  return {{"precision", trainer.precision().name()},
          {"device", trainer.device().str()},
          {"model", run.options.model},
          {"weights", run.weights.string()},
          {"prompt_tokens", row_of(prompt)},
          {"tokens", row_of(made.tokens)},
          {"text", text},
          {"ended_by", generate_end_name(made.end)},
          {"prompt_seconds", made.prompt_seconds},
          {"seconds", made.seconds},
          {"tokens_per_second", made.tokens_per_second()},
          {"peak_memory_bytes", peak_memory_bytes(trainer.device())}};
}

void run_generate(const GenerateCommand& c) {
  GenerateOptions options = generation_options(c);
  const std::optional<OptionValues> config = usage([&] { return find_run_config(c.model.folder); });
  Prompt prompt = read_prompt(c, config);
  const InterruptScope interrupt;
  TrainedModelCommand opened = c.model;
  // A tokenizer on the command line replaces the run's, which may have moved.
  if (c.tokenizer && !text_option(config, "tokenizer").empty()) opened.flags.set("tokenizer", *c.tokenizer);
  const TrainedModel run = open_text_model(opened, {{c.json}}, {c.tokenizer.value_or("")});
  auto* const model = dynamic_cast<CausalModel*>(run.model.get());
  TORCH_CHECK(model, "the model ", run.options.model,
              " cannot write text: it is no CausalModel; give one that is");
  if (!options.stop_tokens && !prompt.stop_tokens.empty()) {
    options.stop_tokens = model->stop_tokens();
    options.stop_tokens->insert(options.stop_tokens->end(), prompt.stop_tokens.begin(),
                                prompt.stop_tokens.end());
  }
  const std::vector<int64_t> stops = options.stop_tokens.value_or(model->stop_tokens());
  std::string text;
  const auto print = [&](const std::string& piece) {
    text += piece;
    if (c.json == "-") return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  options.on_token = [&](const at::Tensor& tokens) {
    const auto token = tokens.item<int64_t>();
    if (c.prompt && std::find(stops.begin(), stops.end(), token) != stops.end()) return true;
    print(prompt.shown(token));
    return InterruptScope::requested() == 0;
  };
  GenerateTask task(run, *model, options);
  DataLoader loader(std::make_shared<TensorDataset>(prompt.tokens), {.batch_size = 1});
  Trainer trainer(evaluation_options(run));
  with_memory_cure([&] { return memory_cure(run.options); },
                   [&] { trainer.predict(task, loader, /*return_predictions=*/false); });
  print(prompt.rest());
  // End the line first: the times may go to the same terminal or file.
  if (c.json != "-" && task.made()) {
    std::fputc('\n', stdout);
    std::fflush(stdout);
  }
  if (const int signal = InterruptScope::requested()) throw Interrupted{signal};
  const Generated& made = task.made().value();
  write_json(to_json(run, trainer, prompt.tokens, made, text), c.json);
  if (c.model.quiet) return;
  print_to_stderr(
      fmt::format("{} prompt tokens in {:.3g} s, then {} tokens in {:.3g} s, {:.4g} a second; ended by {}\n",
                  prompt.tokens.size(1), made.prompt_seconds, made.tokens.size(1) - 1, made.seconds,
                  made.tokens_per_second(), generate_end_name(made.end)));
}

void add_text(CLI::App& sub, const char* flag, std::optional<std::string>& to, const char* value_name,
              const char* help) {
  sub.add_option_function<std::string>(
         flag, [&to](const std::string& text) { to = text; }, help)
      ->option_text(value_name);
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("generate", "Generates text that continues a prompt");
  const auto command = std::make_shared<GenerateCommand>();
  GenerateCommand& c = *command;
  sub->add_option("model", c.model.folder, "a run's folder, or a folder with config.json and weights")
      ->required()
      ->option_text("MODEL");
  add_text(*sub, "--prompt", c.prompt, "TEXT",
           "the text to continue; a model trained on text: data without --tokenizer reads the text as bytes");
  add_text(*sub, "--tokenizer", c.tokenizer, "PATH",
           "a tokenizer's file or folder, for --prompt and the answer; left out: that of the run or of the "
           "model's folder");
  sub->add_flag(
      "--chat", c.is_chat,
      "the prompt is a message to a model that was trained on conversations; uses the run's chat template, "
      "or detects it from the tokenizer");
  add_text(*sub, "--system", c.system, "TEXT", "with --chat: a system message before the prompt");
  add_text(*sub, "--prompt-tokens", c.prompt_tokens, "LIST",
           "the tokens to continue, such as 1,15,7; the new tokens are printed as such a list");
  add_number(*sub, "--max-new-tokens", c.options.max_new_tokens, "N", "the most tokens to write [128]");
  add_number(*sub, "--temperature", c.options.sampling.temperature, "T",
             "divides the logits: below 1 likely tokens become likelier; 0: always the likeliest token [1]");
  add_number(*sub, "--top-k", c.options.sampling.top_k, "K",
             "draws only from the K likeliest tokens; 0: from all [0]");
  add_number(*sub, "--top-p", c.options.sampling.top_p, "P",
             "draws only from the likeliest tokens that together have this probability [1]");
  add_number(*sub, "--seed", c.seed, "SEED", "seed of the choice of tokens [1]");
  add_text(*sub, "--stop-tokens", c.stop_tokens, "LIST",
           "tokens that end the text, such as 2,7, or none; left out: the model's own");
  sub->add_flag(
      "--slide", c.options.slide,
      "when the context is full, forgets its older half and continues; left out, the text ends there");
  add_json_flag(*sub, c.json);
  sub->add_flag("--quiet", c.model.quiet, "prints no times on standard error");
  add_fit_flags(*sub, c.model.flags, FlagsOf::kGenerate);
  sub->footer("The text is written to standard output as it is made, and the times to standard error.");
  sub->callback([command] { run_generate(*command); });
}

}  // namespace mantissa::cli
