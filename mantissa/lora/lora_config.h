#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "mantissa/lora/module_names.h"

namespace mantissa {

/// An adapter's settings, with the names and defaults of PEFT's LoraConfig.
struct LoraConfig {
  /// The rank: a layer of [out, in] gets A [r, in] and B [out, r].
  int64_t r = 8;
  /// The product B A is scaled by lora_alpha / r, or by lora_alpha / sqrt(r) with use_rslora.
  double lora_alpha = 8;
  /// The share of the inputs of A that are dropped while the layer trains.
  double lora_dropout = 0;
  /// Rank-stabilized scaling, for large ranks (Kalajdzievski 2023, arXiv:2312.03732).
  bool use_rslora = false;
  /// Trains the length of each row of the weight apart from its direction (Liu et al. 2024, arXiv:2402.09353).
  bool use_dora = false;
  /// The layers that get an adapter. Each must be a plain torch::nn::Linear.
  ModuleNames target_modules = "all-linear";
  /// Layers that get none although target_modules names them.
  ModuleNames exclude_modules = {};
  /// Other ranks and alphas for some layers: by the end of a layer's name, or an expression for it.
  std::map<std::string, int64_t> rank_pattern = {};
  std::map<std::string, double> alpha_pattern = {};
  /// Where the base model comes from. It is only passed through.
  std::string base_model_name_or_path = {};

  /// Returns the rank and the alpha of the layer `name`.
  /// Errors: c10::ValueError for an expression that would try too many ways to match `name`.
  int64_t rank_of(const std::string& name) const;
  double alpha_of(const std::string& name) const;
  /// Returns the factor of B A in the layer `name`.
  double scaling_of(const std::string& name) const;

  bool operator==(const LoraConfig&) const = default;
};

/// Errors: c10::ValueError that names the member, its value and the range.
void check_lora_config(const LoraConfig& config);

/// Returns the content of adapter_config.json, as PEFT reads it.
/// Errors: those of check_lora_config().
std::string to_adapter_config(const LoraConfig& config);

/// Reads an adapter_config.json of PEFT. Settings that concern only how PEFT initializes or places an adapter
/// are ignored. `from` names the text in errors.
///
/// Errors: c10::ValueError that names the key: text that is no JSON object, a peft_type other than LORA, values
///         of another type or out of range, and every setting that changes what the adapter computes and is not
///         known here (bias, modules_to_save, layer_replication, ...).
/// Source: PEFT's LoraConfig, https://huggingface.co/docs/peft/package_reference/lora
LoraConfig parse_adapter_config(std::string_view text, const std::string& from);

}  // namespace mantissa
