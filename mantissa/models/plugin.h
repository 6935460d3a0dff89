#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/version.h>

#include "mantissa/models/registry.h"
#include "mantissa/models/tensor_module.h"

/// Exports a model of one's own from a shared library, for `--model lib:FILE.so` and make_model(): a summary of one line,
/// the InputKind that the model reads, and a function (const ModelInput&) -> std::shared_ptr<TensorModule>. Use it once in a
/// library, outside of all namespaces.
///
///     struct Net final : mantissa::TensorModule {
///       explicit Net(const mantissa::ModelInput& input) : fc(input.height * input.width, input.classes) {
///         register_module("fc", fc);
///       }
///       at::Tensor forward(const at::Tensor& x) override { return fc(x.flatten(1)); }
///       torch::nn::Linear fc;
///     };
///     MANTISSA_MODEL_PLUGIN("one linear layer", mantissa::InputKind::kImages,
///                           [](const mantissa::ModelInput& input) { return std::make_shared<Net>(input); })
///
/// The library needs this header and libtorch, and none of Mantissa's archives.
#define MANTISSA_MODEL_PLUGIN(summary, kind, ...)                                                            \
  extern "C" __attribute__((visibility("default"))) const ::mantissa::ModelPlugin* mantissa_model_plugin() { \
    static const ::mantissa::ModelPlugin plugin{                                                             \
        {},                                                                                                  \
        summary,                                                                                             \
        kind,                                                                                                \
        [](const ::mantissa::ModelInput& input) -> std::shared_ptr<::mantissa::TensorModule> {               \
          return (__VA_ARGS__)(input);                                                                       \
        }};                                                                                                  \
    return &plugin;                                                                                          \
  }

namespace mantissa {

/// What a plug-in was built with. Its layout never changes, so that a program of any version can read it.
struct PluginVersion {
  /// Grows with each change of ModelPlugin, ModelInput, InputKind or TensorModule.
  static constexpr uint32_t kInterface = 1;

  uint32_t interface_number = kInterface;
  uint32_t compiler = __GXX_ABI_VERSION;
  const char* torch = TORCH_VERSION;
};

/// What a plug-in exports. MANTISSA_MODEL_PLUGIN() fills it in.
struct ModelPlugin {
  PluginVersion version;
  const char* summary = nullptr;
  InputKind input = InputKind::kImages;
  std::shared_ptr<TensorModule> (*make)(const ModelInput& input) = nullptr;
};

/// The prefix of a model in a shared library: "lib:FILE.so".
inline constexpr const char* kPluginPrefix = "lib:";

/// Loads the library `file` and returns the row of its model, which is called `name`. The library stays loaded until the
/// program ends, and a later call returns the model that was loaded first, even if the file has changed.
///
/// Errors: c10::ValueError that names the file, if it does not exist, is no shared library, needs a symbol that this process
///         does not have, exports no model, or was built with another interface, libtorch or ABI of the compiler. `make` of
///         the row throws c10::ValueError if the plug-in throws or returns no model.
/// Safety: loading a library runs its code. Load only those that you trust.
ModelEntry load_model_plugin(const std::string& name, const std::string& file);

}  // namespace mantissa
