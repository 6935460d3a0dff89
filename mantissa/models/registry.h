#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mantissa/models/tensor_module.h"

namespace mantissa {

/// The input of a model: float images [N, C, H, W] for classification, or integer tokens [B, T] to predict
/// the next token.
enum class InputKind { kImages, kTokens };

/// "images" or "tokens".
const char* input_kind_name(InputKind kind);

/// The properties of a data set that a model's shape depends on. Only the fields of its kind are read.
struct ModelInput {
  InputKind kind = InputKind::kImages;
  // Images.
  int64_t channels = 1;
  int64_t height = 0;
  int64_t width = 0;
  int64_t classes = 0;
  // Tokens.
  int64_t vocabulary = 256;
  int64_t context = 128;
};

struct ModelEntry {
  std::string name;
  /// A summary of one line, for --help.
  std::string summary;
  /// Empty if the model does not say what it reads.
  std::optional<InputKind> input;
  std::function<std::shared_ptr<TensorModule>(const ModelInput&)> make;
  /// The number of token ids of a model that has one of its own, whatever its data.
  std::optional<int64_t> vocabulary = {};

  bool reads(InputKind kind) const { return !input || *input == kind; }
};

/// Returns the small models that make_model() knows by their names, for the command line's help and for tests over all
/// models. It also knows those of public_models().
const std::vector<ModelEntry>& models();

/// Returns the models of public sizes that make_model() knows: GPT-2's (gpt2_sizes()), resnet18 and resnet50, and Vision
/// Transformers by their names in torchvision and in timm, which their files have. Making one can take seconds and more than a GiB.
const std::vector<ModelEntry>& public_models();

/// The prefix of a model that its config.json describes: "hf:FOLDER" or "hf:FOLDER/config.json".
inline constexpr const char* kConfigPrefix = "hf:";

/// The prefix of a model in a TorchScript file: "jit:FILE.pt". See ScriptModel.
inline constexpr const char* kScriptPrefix = "jit:";

/// Whether `name` is the path of a model behind one of the prefixes, and not a name of a table.
bool is_model_path(const std::string& name);

/// Returns the row of `name`, or a row for a model of a config.json (hf:), of a shared library (lib:, see plugin.h) or of a
/// TorchScript file (jit:). Makes no model, but loads the library.
///
/// Errors: c10::ValueError for an unknown name (the message has the nearest name and the list); those of
///         load_llama_config() for a model of a config.json, and of load_model_plugin().
ModelEntry find_model(const std::string& name);

/// Makes the model called `name` in its default size, or in that of its config.json, with weights drawn from the global
/// generator in the default dtype. A TorchScript file has weights and sizes of its own.
///
/// Errors: those of find_model() and ScriptModel; c10::ValueError for a model that reads the other kind of input (the message has the
///         models that fit), for sizes that the model refuses, and for tokens that a config.json's vocabulary or
///         context is too small for.
std::shared_ptr<TensorModule> make_model(const std::string& name, const ModelInput& input);

}  // namespace mantissa
