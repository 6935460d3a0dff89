#include <cstdint>
#include <string>
#include <vector>

#include "cli/data/kinds.h"
#include "cli/fit_options.h"
#include "cli/option_destination.h"
#include "cli/options/groups.h"
#include "mantissa/data/idx.h"

namespace mantissa::cli {

namespace {

/// Returns "digits, idx:DIR (MNIST's files), ... or tokens:FILE (ids)".
std::string forms_of_data() {
  std::vector<std::string> forms;
  for (const DataKind& kind : data_kinds())
    forms.push_back(kind.form() + (kind.help.empty() ? "" : " (" + kind.help + ")"));
  return either(forms);
}

}  // namespace

std::vector<Option> data_options() {
  constexpr auto kGroup = Group::kData;
  return {
      {.name = "data",
       .group = kGroup,
       .to = to(&FitOptions::data),
       .default_value = "digits",
       .help = forms_of_data(),
       .in_resume = true,
       .in_trained = true,
       .not_in_generate = true,
       .known_as = {"dataset"}},
      {.name = "val_fraction",
       .group = kGroup,
       .to = to(&FitOptions::val_fraction),
       .default_value = 0.2,
       .help = "share held out for validation where the data has no split of its own",
       .default_for_text = 0.1,
       .range = {{0.001, 0.9}}},
      {.name = "classes",
       .group = kGroup,
       .to = to(&FitOptions::classes),
       .default_value = 0,
       .help = "number of classes of idx: labels; 0: taken from the labels, at least 10",
       .range = {{0, kMaxIdxClasses, "taken from the labels"}}},
      {.name = "target",
       .group = kGroup,
       .to = to(&FitOptions::target),
       .default_value = "",
       .help = "csv: data: the column that has the classes; by default the last one",
       .may_be_empty = true,
       .known_as = {"label", "target_column", "label_column"}},
      {.name = "features",
       .group = kGroup,
       .to = to(&FitOptions::features, parse_columns),
       .default_value = "",
       .help = "csv: data: the columns to train on, with commas between them; by default all but the target",
       .is_list = true,
       .may_be_empty = true,
       .known_as = {"columns", "feature_columns", "feature_names"}},
      {.name = "context",
       .group = kGroup,
       .to = to(&FitOptions::context),
       .default_value = 128,
       .help =
           "length of the windows of text: and tokens: data and of the conversations of chat: data, and of "
           "the sequences of a model that is made for them",
       .range = {{1, 1048576}},
       .known_as = {"block_size", "seq_length", "max_length"}},
      {.name = "vocabulary",
       .group = kGroup,
       .to = to(&FitOptions::vocabulary),
       .default_value = 50257,
       .help = "number of ids in tokens: data; by default that of a model with a config.json, else 50257",
       .range = {{1, 2097152}},
       .known_as = {"vocab_size"}},
      {.name = "tokenizer",
       .group = kGroup,
       .to = to(&FitOptions::tokenizer),
       .default_value = "",
       .help =
           "chat: and text: data: tokenizer.json, vocab.json beside merges.txt, or a folder that has either; "
           "without one, a text is its bytes",
       .may_be_empty = true,
       .in_resume = true,
       .in_trained = true,
       .not_in_generate = true,
       .known_as = {"tokenizer_path", "tokenizer_name"}},
      {.name = "chat_template",
       .group = kGroup,
       .to = to(&FitOptions::chat_template),
       .default_value = "auto",
       .help = "chat: data: how a conversation becomes text; auto: by the tokenizer's special tokens",
       .choices = {"auto", "chatml", "llama3", "llama2", "plain"},
       .known_as = {"conversation_template", "prompt_template"}},
      {.name = "batch_size",
       .group = kGroup,
       .to = to(&DataLoaderOptions::batch_size),
       .default_value = 32,
       .help = "samples per batch",
       .default_for_text = 16,
       .range = {{1, 1e9}}},
      {.name = "num_workers",
       .group = kGroup,
       .to = to(&DataLoaderOptions::num_workers),
       .default_value = 0,
       .help = "threads that read batches ahead; the result is the same; 0: the training thread reads",
       .range = {{0, 1024, "none"}},
       .known_as = {"workers"}},
      {.name = "seed",
       .group = kGroup,
       .to = to(&FitOptions::seed),
       .default_value = uint64_t{1},
       .help = "seed of the split, the shuffling and the weights: 0 to 2^64 - 1",
       .known_as = {"random_seed", "seed_everything"}},
  };
}

}  // namespace mantissa::cli
