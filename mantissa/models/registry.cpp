#include "mantissa/models/registry.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "mantissa/core/suggest.h"
#include "mantissa/io/json_internal.h"
#include "mantissa/models/config_fields_internal.h"
#include "mantissa/models/convnet.h"
#include "mantissa/models/gpt.h"
#include "mantissa/models/gpt2.h"
#include "mantissa/models/gpt2_config.h"
#include "mantissa/models/llama.h"
#include "mantissa/models/llama_config.h"
#include "mantissa/models/mlp.h"
#include "mantissa/models/model_folder_internal.h"
#include "mantissa/models/plugin.h"
#include "mantissa/models/resnet.h"
#include "mantissa/models/script_model.h"
#include "mantissa/models/torchvision_resnet.h"
#include "mantissa/models/vit.h"

namespace mantissa {
namespace {

std::shared_ptr<TensorModule> make_mlp(const ModelInput& input) {
  return std::make_shared<MlpImpl>(
      MlpOptions{.in_features = input.channels * input.height * input.width, .classes = input.classes});
}

std::shared_ptr<TensorModule> make_convnet(const ModelInput& input) {
  return std::make_shared<ConvnetImpl>(ConvnetOptions{
      .channels = input.channels, .height = input.height, .width = input.width, .classes = input.classes});
}

std::shared_ptr<TensorModule> make_resnet(const ModelInput& input) {
  return std::make_shared<ResnetImpl>(ResnetOptions{.channels = input.channels, .classes = input.classes});
}

std::shared_ptr<TensorModule> make_gpt(const ModelInput& input) {
  return std::make_shared<GptImpl>(GptOptions{.context = input.context, .vocabulary = input.vocabulary});
}

std::shared_ptr<TensorModule> make_llama(const ModelInput& input) {
  return std::make_shared<LlamaImpl>(LlamaOptions{.vocab_size = input.vocabulary,
                                                  .hidden_size = 256,
                                                  .intermediate_size = 688,
                                                  .num_hidden_layers = 4,
                                                  .num_attention_heads = 4,
                                                  .num_key_value_heads = 2,
                                                  .max_position_embeddings = input.context,
                                                  .eos_token_id = {}});  // bytes have no end
}

template <typename Model, typename Options>
ModelEntry entry_of_options(const std::string& name, const std::string& summary, const Options& options,
                            int64_t vocabulary, int64_t context) {
  const auto make = [=](const ModelInput& input) {
    TORCH_CHECK_VALUE(input.vocabulary <= vocabulary && input.context <= context, "make_model: '", name,
                      "' has a vocabulary of ", vocabulary, " and a context of ", context,
                      " tokens, and this data has ", input.vocabulary, " and ", input.context,
                      "; give a model that is large enough, or other data");
    return std::make_shared<Model>(options);
  };
  return {name, summary, InputKind::kTokens, make, vocabulary};
}

/// Returns the row of a model whose config.json is `path`, or in the folder `path`.
ModelEntry entry_of_config(const std::string& name, const std::string& path) {
  const ConfigFile config = read_config_file(path);
  const std::string type = model_type_of(config.text, config.name);
  if (type == "gpt2") {
    const Gpt2Options o = parse_gpt2_config(config.text, config.name);
    return entry_of_options<Gpt2Impl>(name, "the GPT-2 of a config.json", o, o.vocab_size, o.n_positions);
  }
  TORCH_CHECK_VALUE(type == "llama", quoted(config.name), ": model_type is '", type,
                    "'; only gpt2 and llama can be read here");
  const LlamaOptions o = parse_llama_config(config.text, config.name);
  return entry_of_options<LlamaImpl>(name, "the Llama of a config.json", o, o.vocab_size,
                                     o.max_position_embeddings);
}

/// Returns the row of one of GPT-2's public sizes. Its vocabulary and context are those of the data.
ModelEntry entry_of_gpt2(const std::string& size) {
  Gpt2Options options = gpt2_options(size);
  const auto make = [=](const ModelInput& input) mutable {
    options.vocab_size = input.vocabulary, options.n_positions = input.context;
    return std::make_shared<Gpt2Impl>(options);
  };
  return {size, "GPT-2 of a public size", InputKind::kTokens, make};
}

ModelEntry entry_of_resnet(const std::string& name, const std::string& summary,
                           TorchvisionResnetOptions options) {
  const auto make = [=](const ModelInput& input) mutable {
    options.channels = input.channels, options.classes = input.classes;
    return std::make_shared<TorchvisionResnetImpl>(options);
  };
  return {name, summary, InputKind::kImages, make};
}

ModelEntry entry_of_vit(const std::string& name, const std::string& summary, VitOptions options,
                        VitNames names) {
  options.names = names;
  const auto make = [=](const ModelInput& input) mutable {
    TORCH_CHECK_VALUE(input.height == input.width && input.height % options.patch_size == 0, "make_model: '",
                      name, "' reads square images whose sides are multiples of ", options.patch_size,
                      ", and this data has ", input.height, "x", input.width, "; resize the images");
    options.channels = input.channels, options.num_classes = input.classes, options.image_size = input.height;
    return std::make_shared<VitImpl>(options);
  };
  return {name, summary, InputKind::kImages, make};
}

/// A script does not say what it reads, and has its sizes already.
ModelEntry entry_of_script(const std::string& name, const std::string& file) {
  return {name, "the model of a TorchScript file", std::nullopt,
          [file](const ModelInput& /*input*/) { return std::make_shared<ScriptModel>(file); }};
}

/// A model behind a prefix.
struct PathKind {
  std::string prefix;
  ModelEntry (*entry)(const std::string& name, const std::string& path);
};

/// Returns the kind of the path that `name` is; null for a name of a table.
const PathKind* path_kind_of(const std::string& name) {
  static const std::vector<PathKind> kinds = {{kConfigPrefix, &entry_of_config},
                                              {kPluginPrefix, &load_model_plugin},
                                              {kScriptPrefix, &entry_of_script}};
  for (const PathKind& kind : kinds)
    if (name.starts_with(kind.prefix)) return &kind;
  return nullptr;
}

std::vector<std::string> names_of_kind(InputKind kind) {
  std::vector<std::string> names;
  for (const ModelEntry& entry : models()) {
    if (entry.reads(kind)) names.push_back(entry.name);
  }
  return names;
}

}  // namespace

const char* input_kind_name(InputKind kind) { return kind == InputKind::kImages ? "images" : "tokens"; }

const std::vector<ModelEntry>& models() {
  static const std::vector<ModelEntry> table = {
      {"mlp", "two hidden layers of 128 with ReLU", InputKind::kImages, &make_mlp},
      {"convnet", "two 3x3 convolutions, max-pool, one hidden layer", InputKind::kImages, &make_convnet},
      {"resnet-tiny", "three basic blocks with batch norm, 32-64-128 channels", InputKind::kImages,
       &make_resnet},
      {"gpt-tiny", "transformer over bytes: 4 layers, 256 wide, 4 heads", InputKind::kTokens, &make_gpt},
      {"llama-tiny", "Llama over bytes: 4 layers, 256 wide, 4 heads in 2 groups", InputKind::kTokens,
       &make_llama},
  };
  return table;
}

const std::vector<ModelEntry>& public_models() {
  static const std::vector<ModelEntry> table = [] {
    std::vector<ModelEntry> all;
    for (const std::string& size : gpt2_sizes()) all.push_back(entry_of_gpt2(size));
    all.push_back(entry_of_resnet("resnet18", "ResNet-18 with torchvision's names", resnet18_options()));
    all.push_back(entry_of_resnet("resnet50", "ResNet-50 with torchvision's names", resnet50_options()));
    const auto add_vit = [&](const char* torchvision, const char* timm, const std::string& size,
                             const VitOptions& options) {
      all.push_back(
          entry_of_vit(torchvision, size + " with torchvision's names", options, VitNames::kTorchvision));
      all.push_back(entry_of_vit(timm, size + " with timm's names", options, VitNames::kTimm));
    };
    all.push_back(entry_of_vit("vit_tiny_patch16_224", "ViT-Ti/16 with timm's names", vit_ti_16_options(),
                               VitNames::kTimm));
    all.push_back(entry_of_vit("vit_small_patch16_224", "ViT-S/16 with timm's names", vit_s_16_options(),
                               VitNames::kTimm));
    add_vit("vit_b_16", "vit_base_patch16_224", "ViT-B/16", vit_b_16_options());
    add_vit("vit_l_16", "vit_large_patch16_224", "ViT-L/16", vit_l_16_options());
    return all;
  }();
  return table;
}

bool is_model_path(const std::string& name) { return path_kind_of(name) != nullptr; }

ModelEntry find_model(const std::string& name) {
  if (const PathKind* const kind = path_kind_of(name))
    return kind->entry(name, name.substr(kind->prefix.size()));
  std::vector<std::string> names;
  for (const auto* const table : {&models(), &public_models()}) {
    for (const ModelEntry& entry : *table) {
      if (entry.name == name) return entry;
      names.push_back(entry.name);
    }
  }
  TORCH_CHECK_VALUE(false, "make_model: no model is called '", name, "'", did_you_mean(name, names),
                    " (models: ", join_names(names),
                    ", or hf:FOLDER with a config.json, lib:FILE.so or jit:FILE.pt)");
}

std::shared_ptr<TensorModule> make_model(const std::string& name, const ModelInput& input) {
  const ModelEntry entry = find_model(name);
  TORCH_CHECK_VALUE(entry.reads(input.kind), "make_model: '", name, "' reads ", input_kind_name(*entry.input),
                    ", and this data holds ", input_kind_name(input.kind), "; choose one of ",
                    join_names(names_of_kind(input.kind)));
  return entry.make(input);
}

}  // namespace mantissa
