#include "cli/fine_tuning.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "cli/fit_options.h"
#include "cli/model_weights.h"
#include "cli/terminal_text.h"
#include "mantissa/core/suggest.h"
#include "mantissa/io/sharded.h"
#include "mantissa/io/weights.h"
#include "mantissa/models/public_model.h"
#include "mantissa/models/weight_form.h"
#include "mantissa/weights/named_parts.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::cli {
namespace {

std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

bool is_in(const std::string& name, const std::string& module) { return name.starts_with(module + "."); }

bool is_selected(const std::string& parameter, const std::string& name, const std::string& head) {
  return parameter == name || is_in(parameter, name) || (name == "head" && is_in(parameter, head)) ||
         matches_any({name}, parameter);
}

bool is_of_adapter(const std::string& parameter) { return parameter.find(".lora_") != std::string::npos; }

/// Returns the names of all parameters and of the modules that have some.
std::vector<std::string> all_names(const std::map<std::string, at::Tensor>& parameters) {
  std::set<std::string> names;
  for (const auto& [parameter, tensor] : parameters)
    for (std::string name = parameter; !name.empty(); name = module_of(name)) names.insert(name);
  return {names.begin(), names.end()};
}

/// Loads tensors one by one under the names of the model's files, so that errors use these names.
void load_plain(torch::nn::Module& model, const std::filesystem::path& file, const std::string& head) {
  const auto* const known = dynamic_cast<const PublicModel*>(&model);
  std::map<std::string, at::Tensor> own = named_weights(model);
  std::erase_if(own, [&](const auto& item) { return is_in(item.first, head); });
  load_weights(known ? as_in_files(*known, own) : own, file, [&](const std::string& stored) {
    const std::string name = known ? known->own_name(stored) : stored;
    if (name.empty() || is_in(name, head)) return std::string();
    return known ? known->name_in_files(name) : name;
  });
}

}  // namespace

std::string output_layer(const torch::nn::Module& model, const std::string& flag) {
  const auto parameters = model.named_parameters();
  std::string layer;
  for (const std::string& parameter : parameters.keys())
    if (!is_of_adapter(parameter)) layer = module_of(parameter);
  const at::Tensor* const weight = layer.empty() ? nullptr : parameters.find(layer + ".weight");
  TORCH_CHECK_VALUE(weight && weight->dim() == 2, flag,
                    ": the model does not end with a linear layer of its own, but with '", layer,
                    "'; name the parameters to train with --train-only, or leave ", flag, " out");
  return layer;
}

namespace {

/// Loads the weights of a file as load_model_weights() does, except those of the output layer, which keeps its values.
/// The file's output layer may have another shape, or be missing.
void load_weights_below_head(torch::nn::Module& model, const std::filesystem::path& file,
                             const FitOptions& o) {
  const std::string head = output_layer(model, "--new-head");
  const SafetensorsModel opened(file);
  std::map<std::string, at::Tensor> stored = read_if_quantized(opened);
  if (stored.empty()) return load_plain(model, file, head);
  if (const auto* const known = dynamic_cast<const PublicModel*>(&model))
    stored = as_in_model(*known, stored, file.string());
  std::erase_if(stored, [&](const auto& item) { return is_in(item.first, head); });
  for (const auto& [name, weight] : named_weights(model))
    if (is_in(name, head)) stored[name] = weight.detach().clone();
  load_model_weights(model, std::move(stored), file.string(), o);
}

/// Whether all weights of the file but those of the output layer fit. Changes the model.
bool fits_below_head(torch::nn::Module& model, const std::filesystem::path& file, const FitOptions& o) {
  try {
    load_weights_below_head(model, file, o);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

void load_first_weights(torch::nn::Module& model, const FitOptions& o) {
  if (o.new_head) return load_weights_below_head(model, o.weights, o);
  try {
    load_model_weights(model, o.weights, o);
  } catch (const c10::ValueError& error) {
    if (!fits_below_head(model, o.weights, o)) throw;
    C10_THROW_ERROR(ValueError, error.what_without_backtrace() +
                                    std::string("; only the output layer differs: --new-head leaves it out, "
                                                "so that the model has the classes of the data"));
  }
}

namespace {

/// Throws for a weight that --train-only `name` selects and that has an adapter, is quantized, or both.
[[noreturn]] void refuse_weight(const std::string& name, const std::string& parameter,
                                const at::Tensor& weight) {
  std::vector<std::string> reasons, cures;
  if (is_adapted(weight)) {
    reasons.emplace_back("has an adapter");
    cures.emplace_back("exclude its layer from --lora (exclude=...)");
  }
  if (is_packed(base_weight(weight))) {
    reasons.emplace_back("is quantized");
    cures.emplace_back("keep its layer in float (--ignore-modules)");
  }
  C10_THROW_ERROR(ValueError,
                  fmt::format("--train-only {}: '{}' {}, so it cannot be trained directly; remove it "
                              "from --train-only, or {}",
                              name, parameter, fmt::join(reasons, " and "), fmt::join(cures, " and ")));
}

}  // namespace

void train_only(torch::nn::Module& model, const std::vector<std::string>& names) {
  if (names.empty()) return;
  const auto* const known = dynamic_cast<const PublicModel*>(&model);
  std::map<std::string, at::Tensor> parameters;
  for (const auto& item : model.named_parameters()) parameters.emplace(item.key(), item.value());
  const bool wants_head = std::count(names.begin(), names.end(), "head") > 0;
  const bool has_module = std::any_of(parameters.begin(), parameters.end(),
                                      [](const auto& item) { return is_in(item.first, "head"); });
  const std::string head = wants_head && !has_module ? output_layer(model, "--train-only head") : "head";
  const std::map<std::string, at::Tensor> plain = plain_weights(parameters);
  std::set<std::string> selected;
  for (const std::string& name : names) {
    bool is_known = false;
    for (const auto& [parameter, tensor] : parameters) {
      const std::string in_files = known ? known->name_in_files(parameter) : parameter;
      if (is_of_adapter(parameter) ||
          !(is_selected(parameter, name, head) || is_selected(in_files, name, head)))
        continue;
      if (!plain.contains(parameter)) refuse_weight(name, parameter, tensor);
      is_known = true;
      selected.insert(parameter);
    }
    TORCH_CHECK_VALUE(is_known, "--train-only '", name, "' selects no parameter of the model",
                      did_you_mean(name, all_names(parameters)),
                      "; `mantissa inspect --no-values` lists the names in a file of weights");
  }
  for (auto& [parameter, tensor] : parameters)
    if (plain.contains(parameter) && !is_of_adapter(parameter))
      tensor.set_requires_grad(selected.contains(parameter));
}

}  // namespace mantissa::cli
