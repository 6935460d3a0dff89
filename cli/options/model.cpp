#include <string>
#include <vector>

#include "cli/fit_options.h"
#include "cli/lora_option.h"
#include "cli/option_destination.h"
#include "cli/option_parsers.h"
#include "cli/options/groups.h"
#include "mantissa/models/plugin.h"
#include "mantissa/models/registry.h"

namespace mantissa::cli {

namespace {

/// "none" is no file, so that a flag can overrule a configuration file.
std::string parse_file(const std::string&, const std::string& text) { return text == "none" ? "" : text; }

}  // namespace

std::vector<Option> model_options() {
  constexpr auto kGroup = Group::kModel;
  const std::vector<std::string> names = registered_names(Registry::kModels);
  return {
      {.name = "model",
       .group = kGroup,
       .to = to(&FitOptions::model),
       .default_value = "convnet",
       .help = either(names) + "; hf:FOLDER makes the Llama or GPT-2 of the folder's config.json, "
                               "lib:FILE.so the model of a plug-in, and "
                               "jit:FILE.pt that of a TorchScript file",
       .default_for_text = "gpt-tiny",
       .choices = names,
       .choice_prefixes = {kConfigPrefix, kPluginPrefix, kScriptPrefix},
       .known_as = {"network", "arch"}},
      {.name = "weights",
       .group = kGroup,
       .to = to(&FitOptions::weights, parse_file),
       .default_value = "",
       .help = "start from this safetensors file, or from a model in shards: its index or folder; or none",
       .names_a_file = true,
       .in_trained = true,
       .only_for_training = true,
       .help_elsewhere = "the weights to use instead of the run's: a safetensors file, or the index or "
                         "folder of a model in shards"},
      {.name = "new_head",
       .group = kGroup,
       .to = to(&FitOptions::new_head),
       .default_value = false,
       .help = "leave out the last linear layer of --weights, for other classes"},
      {.name = "train_only",
       .group = kGroup,
       .to = to(&FitOptions::train_only, parse_words_or_none),
       .default_value = "",
       .help = "parameters, modules or shell patterns to train, such as head,norm or *.bias; left out: all",
       .is_list = true},
      {.name = "lora",
       .group = kGroup,
       .to = to(&FitOptions::lora, parse_lora),
       .default_value = "",
       .help = "train adapters and freeze the model, for example r=16,alpha=32,targets=qkv+projection; also "
               "dropout=0.05, exclude=head, rslora and dora; empty: train the model",
       .has_settings = true,
       .known_as = {"peft", "lora_config"}},
      {.name = "adapter",
       .group = kGroup,
       .to = to(&FitOptions::adapter, parse_file),
       .default_value = "",
       .help = "continue to train the adapter of this folder, which has PEFT's two files; or none",
       .names_a_file = true,
       .known_as = {"lora_path", "adapter_name_or_path", "peft_model"}},
      {.name = "activation_checkpointing",
       .group = kGroup,
       .to = to(&FitOptions::activation_checkpointing),
       .default_value = false,
       .help =
           "keep one activation per layer of a transformer and compute the others again in the backward pass",
       .in_resume = true,
       .known_as = {"gradient_checkpointing"}},
      {.name = "loss_chunk",
       .group = kGroup,
       .to = to(&FitOptions::loss_chunk),
       .default_value = 0,
       .help = "compute the logits of this many positions of a text at a time, so that large vocabularies "
               "fit; 0: all at once",
       .range = kFromZero,
       .in_resume = true,
       .in_trained = true,
       .known_as = {"chunked_cross_entropy"}},
      {.name = "device",
       .group = kGroup,
       .to = to(&TrainerOptions::device),
       .default_value = "auto",
       .help = "auto, cpu, cuda or cuda:N",
       .in_resume = true,
       .in_trained = true,
       .known_as = {"accelerator", "gpus"}},
      {.name = "threads",
       .group = kGroup,
       .to = to(&FitOptions::threads),
       .default_value = 0,
       .help = "CPU threads; 0: one per core",
       .in_resume = true,
       .in_trained = true},
      {.name = "channels_last",
       .group = kGroup,
       .to = to(&TrainerOptions::channels_last),
       .default_value = false,
       .help = "lay out images and convolutions' weights with the channels last, for tensor cores",
       .in_resume = true,
       .in_trained = true},
      {.name = "benchmark",
       .group = kGroup,
       .to = to(&TrainerOptions::benchmark),
       .default_value = false,
       .help = "cuDNN times its algorithms for each new shape and takes the fastest",
       .in_resume = true,
       .in_trained = true},
  };
}

}  // namespace mantissa::cli
