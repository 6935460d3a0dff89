#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mantissa/lora/lora_config.h"

namespace torch::nn {
class Module;
}

namespace mantissa {

/// What merging did to one layer.
struct MergedLayer {
  std::string name;
  /// The largest difference between a weight of the merged layer and the exact sum of base and adapter: what
  /// rounding to the base's dtype or format costs. 0 for a float32 base.
  double max_error = 0;
  /// The root mean square of these differences, divided by that of the exact sum.
  double relative_error = 0;
  /// The root mean square of these differences, divided by that of the change that the adapters make. A value near 1
  /// means that rounding loses about as much as the adapters have learned: merge with dequantize = true, or into a base
  /// of float32. It is 0 if the adapters change nothing.
  double error_over_change = 0;
};

/// Adds low-rank adapters (LoRA, rsLoRA, DoRA) to the linear layers of any model, and manages them as PEFT's
/// LoraModel does. The model's code does not change: the weights of its plain torch::nn::Linear members are
/// exchanged for ones that add the adapters' product (weights/packed_data.h), so the model computes with the
/// active adapters wherever it uses these layers. All other parameters are frozen.
///
///     LoraModel lora(*model, {.r = 16, .lora_alpha = 32, .target_modules = {"qkv", "projection"}});
///     AdamW optimizer(model->parameters(), ...);      // steps the adapters only
///     ... train as before ...
///     lora.save_pretrained("my-adapter");             // PEFT reads this folder
///
/// Bases:    float32, float16, bfloat16 or packed weights (4-bit ones for QLoRA), before or after a mode has
///           converted or quantized the model: conversion reaches the base under the adapter.
/// Names:    the model's parameters are PEFT's: "fc.lora_A.default.weight" [r, in], "fc.lora_B.default.weight"
///           [out, r], "fc.lora_magnitude_vector.default.weight" [out] (DoRA). The base keeps its name,
///           "fc.weight", so checkpoints, clipping and averages treat the adapters like other parameters.
/// Numerics: adapters are float32, whatever dtype the base has, since an optimizer's updates are smaller than
///           the steps between 16-bit numbers. A product rounds them to the dtype of its input. A starts with
///           Kaiming-uniform values (a = sqrt(5)), B with zeros, DoRA's magnitude with the lengths of the base's
///           rows, so that a new adapter changes nothing. The lengths are computed in float32.
/// Dropout:  of the adapter's inputs, in training mode (Module::train()).
/// Memory:   DoRA dequantizes the weight in each forward pass for the lengths of its rows. merge_adapter() keeps
///           the original weights.
/// Threads:  not while another thread uses the model; no function between a forward and its backward pass.
/// Errors:   every function throws before it changes anything: c10::ValueError that names the layer, adapter
///           or file. While a layer has adapters, Module::clone() throws c10::NotImplementedError.
/// Lifetime: the model keeps its adapters if this object is destroyed. The model must live as long as this object.
/// Source:   Hu et al. 2021, arXiv:2106.09685; PEFT, https://github.com/huggingface/peft
/// Example:  lora_model_test.cpp, LoraModels.TrainsOnlyItsAdapters
class LoraModel {
 public:
  /// Adds the adapter to `model` and activates it.
  /// Errors: c10::ValueError for settings out of range; if a name of target_modules fits no layer, or fits one
  ///         that is no plain torch::nn::Linear, whose weight is shared with another module, is float64 or on the
  ///         meta device, or that has adapters of another LoraModel.
  /// Warns:  if a rank is above the smaller side of a layer's weight, which only costs memory.
  LoraModel(torch::nn::Module& model, const LoraConfig& config, const std::string& adapter_name = "default");
  /// Loads a folder of PEFT's (see load_adapter()) and activates the adapter.
  static LoraModel from_pretrained(torch::nn::Module& model, const std::filesystem::path& folder,
                                   const std::string& adapter_name = "default", bool is_trainable = false);
  LoraModel(LoraModel&&) noexcept;
  LoraModel& operator=(LoraModel&&) noexcept;
  ~LoraModel();

  /// Adds another adapter, which is not active.
  void add_adapter(const std::string& adapter_name, const LoraConfig& config);
  /// Adds the adapter of a folder with adapter_config.json and adapter_model.safetensors, which is not active.
  /// Unless `is_trainable`, its parameters stay frozen when it is activated.
  /// Errors: also those of parse_adapter_config() and SafetensorsFile; c10::ValueError that names the tensor if
  ///         one is missing, unknown, of another rank, shape or dtype, or not finite.
  void load_adapter(const std::filesystem::path& folder, const std::string& adapter_name,
                    bool is_trainable = false);
  /// Writes adapter_config.json and adapter_model.safetensors, as PEFT does. An existing adapter is replaced.
  /// Errors: those of save_safetensors().
  void save_pretrained(const std::filesystem::path& folder,
                       const std::string& adapter_name = "default") const;
  /// Removes an adapter from every layer.
  void delete_adapter(const std::string& adapter_name);

  /// Activates this adapter and no other. It is trained, the others are not.
  void set_adapter(const std::string& adapter_name);
  /// The same for several adapters, whose contributions add up.
  void set_adapters(const std::vector<std::string>& adapter_names);
  /// Lets the layers compute without adapters, until enable_adapters(). Nothing is trained then.
  void disable_adapters();
  void enable_adapters();

  /// Adds the active adapters to the weights, so that the layers are as fast as layers without adapters. A packed base
  /// is quantized again in its own format; with `dequantize` it becomes a plain weight of its nominal dtype.
  /// Returns what rounding cost each layer.
  /// Numerics: the sum is computed in float32 and rounded once to the dtype of the weight. In bfloat16 this loses up to
  ///           half a unit in the last place, at most 2^-8 of the sum, also with `dequantize`, whose plain weights have
  ///           the nominal dtype. To lose nothing, call the model's to(at::kFloat) first.
  /// Errors:   c10::ValueError if a merged weight is not finite, or if the base's format cannot quantize (give
  ///           `dequantize`), and no layer has changed then; if the adapters are merged or disabled.
  std::vector<MergedLayer> merge_adapter(bool dequantize = false);
  /// Gives the layers back the weights from before merge_adapter(), bit for bit, in the dtype or format that the
  /// model has been converted to meanwhile.
  /// Errors: c10::ValueError that names a layer that cannot be quantized again, and no layer has changed then.
  void unmerge_adapter();
  /// Merges and removes all adapters: the model is a plain one again. Parameters that were trained before
  /// adapters were added are trained again.
  std::vector<MergedLayer> merge_and_unload(bool dequantize = false);
  /// Removes all adapters and restores the model that was there before. This object has no adapters then.
  void unload();

  /// Returns the names of the adapters, sorted.
  std::vector<std::string> adapters() const;
  const std::vector<std::string>& active_adapters() const;
  bool is_merged() const;
  /// Returns an adapter's settings.
  const LoraConfig& config(const std::string& adapter_name = "default") const;
  /// Returns the names of the layers that have the adapter.
  std::vector<std::string> layers(const std::string& adapter_name = "default") const;
  /// Returns the number of trained parameters and of all parameters of the model. A packed weight counts as
  /// many as it has values.
  std::pair<int64_t, int64_t> get_nb_trainable_parameters() const;

 private:
  struct State;
  explicit LoraModel(torch::nn::Module& model);

  std::unique_ptr<State> state_;
};

}  // namespace mantissa
