#include "cli/model_weights.h"

#include <algorithm>
#include <cstddef>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <torch/nn/module.h>

#include "cli/dtype_names.h"
#include "cli/fit_options.h"
#include "mantissa/core/suggest.h"
#include "mantissa/io/atomic_file.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/io/weights.h"
#include "mantissa/models/public_model.h"
#include "mantissa/models/weight_form.h"
#include "mantissa/precision/registry.h"
#include "mantissa/quant/stored_weights.h"
#include "mantissa/weights/named_parts.h"

namespace mantissa::cli {
namespace {

std::map<std::string, at::Tensor> read_all(const SafetensorsModel& model) {
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, entry] : model.entries()) all.emplace(name, model.read(name));
  return all;
}

std::string count_of_weights(size_t count) {
  return fmt::format("{} weight{}", count, count == 1 ? "" : "s");
}

/// Whether the mode of a run computes with the codes that a file has.
bool keeps_codes(const FitOptions& o, const std::vector<std::string>& quantized,
                 const std::map<std::string, at::Tensor>& stored) {
  const bool stores_fp8 = o.trainer.precision_options.fp8_primary_weights.value_or(false);
  return o.traits().frozen_weights ||
         (stores_fp8 && std::all_of(quantized.begin(), quantized.end(), [&](const std::string& name) {
            return stored.at(name).scalar_type() == at::kFloat8_e4m3fn;
          }));
}

}  // namespace

std::map<std::string, at::ScalarType> dtypes_of(const std::map<std::string, SafetensorsEntry>& entries) {
  std::map<std::string, at::ScalarType> dtypes;
  for (const auto& [name, entry] : entries) dtypes.emplace(name, entry.dtype);
  return dtypes;
}

std::string mode_of_weights(const std::map<std::string, SafetensorsEntry>& tensors) {
  std::set<std::string> modes;
  for (const auto& [weight, stored] : find_stored_weights(dtypes_of(tensors))) {
    modes.insert(
        stored.is_fp8
            ? "transformer-engine"
            : mode_for_weights(format_of(stored), tensors.contains(weight + ".nested_absmax"))->name);
  }
  if (!modes.empty()) return fmt::format("{}", fmt::join(modes, " and "));
  std::map<at::ScalarType, int64_t> elements;
  for (const auto& [name, entry] : tensors)
    if (is_castable(entry.dtype)) elements[entry.dtype] += c10::multiply_integers(entry.shape);
  const auto most = std::max_element(elements.begin(), elements.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  const Mode* const mode = most == elements.end() ? nullptr : mode_for_dtype(most->first);
  return mode ? mode->name : "";
}

std::map<std::string, at::Tensor> read_if_quantized(const SafetensorsModel& model) {
  return quantized_weights_of(dtypes_of(model.entries())).empty() ? std::map<std::string, at::Tensor>()
                                                                  : read_all(model);
}

void load_model_weights(torch::nn::Module& model, std::map<std::string, at::Tensor> stored,
                        const std::string& from, const FitOptions& o) {
  const std::vector<std::string> quantized = quantized_weights_of(stored);
  if (!quantized.empty() && !keeps_codes(o, quantized, stored)) {
    TORCH_WARN("'", from, "' has ", count_of_weights(quantized.size()),
               " in 4 or 8 bits, restored to float32 for --precision ", o.precision(),
               "; a quantized mode such as nf4 keeps the codes");
    stored = dequantize_stored(std::move(stored));
  } else if (!quantized.empty()) {
    // The mode decides on formats and layers, as it does when the run is resumed. The model's own values are replaced
    // below and need not be quantized.
    const auto mode = make_precision(o.precision(), at::kCPU, o.trainer.precision_options);
    mode->convert_empty(model);
  }
  const std::map<std::string, at::Tensor> own = named_weights(model);
  const auto count = [&] {  // not of weights that the model lacks, which are an error below
    std::vector<std::string> names = quantized_weights_of(stored);
    std::erase_if(names, [&](const std::string& name) { return !own.contains(name); });
    return names.size();
  };
  const auto before = count();
  stored = dequantize_plain(std::move(stored), own);
  const auto restored = before - count();
  if (restored > 0) {
    TORCH_WARN("'", from, "' has ", count_of_weights(restored), " in 4 or 8 bits that --precision ",
               o.precision(), " leaves in float, converted back to float");
  }
  PartsLoader packed(model, stored, from);  // takes their parts out of `stored`
  load_weights(plain_weights(named_weights(model)), stored, from);
  packed.load();
}

void load_model_weights(torch::nn::Module& model, const std::filesystem::path& file, const FitOptions& o) {
  const SafetensorsModel opened(file);
  auto* const known = dynamic_cast<PublicModel*>(&model);
  std::map<std::string, at::Tensor> stored = read_if_quantized(opened);
  const std::map<std::string, at::Tensor> own = named_weights(model);
  if (stored.empty() && plain_weights(own).size() == own.size())
    return known ? load_weight_file(*known, file) : load_weights(model, file);  // reads one tensor at a time
  if (stored.empty()) stored = read_all(opened);
  if (known) stored = as_in_model(*known, stored, file.string());
  load_model_weights(model, std::move(stored), file.string(), o);
}

void save_model_weights(const torch::nn::Module& model, const std::filesystem::path& file,
                        const std::map<std::string, std::string>& about) {
  std::map<std::string, at::Tensor> parts = named_parts(named_weights(model));
  if (const auto* const known = dynamic_cast<const PublicModel*>(&model)) parts = as_in_files(*known, parts);
  save_safetensors(file, parts, about, Links::kReplace);
}

}  // namespace mantissa::cli
