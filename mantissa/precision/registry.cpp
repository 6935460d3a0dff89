#include "mantissa/precision/registry.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/precision/fp8.h"
#include "mantissa/precision/int8_training.h"
#include "mantissa/precision/mixed.h"
#include "mantissa/precision/mode_options_internal.h"
#include "mantissa/precision/mode_suggestion.h"
#include "mantissa/precision/quantized.h"
#include "mantissa/precision/tf32_mixed.h"
#include "mantissa/precision/true_dtype.h"
#include "mantissa/quant/quantized_4bit.h"

namespace mantissa {
namespace {

/// Makes a mode that keeps the weights as the module was built.
std::unique_ptr<Precision> make_as_built(const Mode& mode, at::Device /*device*/,
                                         const PrecisionOptions& /*options*/) {
  return std::make_unique<Precision>(mode.name, mode.traits);
}

std::unique_ptr<Precision> make_tf32(const Mode& mode, at::Device /*device*/,
                                     const PrecisionOptions& /*options*/) {
  return std::make_unique<Tf32Mixed>(mode.name);
}

std::unique_ptr<Precision> make_wide(const Mode& mode, at::Device device, const PrecisionOptions& options) {
  return std::make_unique<TrueDtype>(compute_dtype(mode, device, options),
                                     TrueDtypeOptions{.name = mode.name});
}

/// Returns a scaler for float32 gradients. It is a disabled one if there is no scale, because a null one would mean the
/// default scaler.
std::unique_ptr<GradScaler> make_scaler_of_mixed(const Mode& mode, at::Device device,
                                                 const PrecisionOptions& options) {
  std::unique_ptr<GradScaler> scaler =
      make_scaler(mode, device, options, options.loss_scale.value_or("dynamic"), /*fp16_gradients=*/false);
  return scaler ? std::move(scaler)
                : std::make_unique<GradScaler>(device, GradScalerOptions{.enabled = false});
}

std::unique_ptr<Precision> make_mixed(const Mode& mode, at::Device device, const PrecisionOptions& options) {
  std::unique_ptr<GradScaler> scaler;
  if (mode.traits.scales_loss) scaler = make_scaler_of_mixed(mode, device, options);
  return std::make_unique<MixedPrecision>(compute_dtype(mode, device, options), device, std::move(scaler),
                                          mode.name);
}

/// Returns the weights of a mode with 16-bit weights. A row with master weights is Apex's O2, which also keeps batch
/// norm in float32.
TrueDtypeOptions narrow_weights(const Mode& mode, at::Device device, const PrecisionOptions& options) {
  TrueDtypeOptions narrow{
      .keep_batchnorm_fp32 = options.keep_batchnorm_fp32.value_or(mode.traits.master_weights),
      .master_weights = traits_of(mode, options).master_weights,
      .name = mode.name};
  narrow.scaler = make_scaler(mode, device, options,
                              options.loss_scale.value_or(mode.traits.scales_loss ? "dynamic" : "none"),
                              /*fp16_gradients=*/!narrow.master_weights);
  return narrow;
}

std::unique_ptr<Precision> make_narrow(const Mode& mode, at::Device device, const PrecisionOptions& options) {
  return std::make_unique<TrueDtype>(compute_dtype(mode, device, options),
                                     narrow_weights(mode, device, options));
}

Fp8LayerOptions fp8_layers(const Mode& mode, const PrecisionOptions& options) {
  return {.recipe = options.recipe.value_or(DelayedScaling()),
          .ignore_modules = options.ignore_modules,
          .first_and_last = options.fp8_first_and_last.value_or(mode.traits.weights.has_value()),
          .native = options.fp8_native.value_or(Fp8Native::kAuto),
          .primary_weights = options.fp8_primary_weights.value_or(false)};
}

std::unique_ptr<Precision> make_fp8_mixed(const Mode& mode, at::Device device,
                                          const PrecisionOptions& options) {
  return std::make_unique<Fp8Mixed>(device, fp8_layers(mode, options));
}

std::unique_ptr<Precision> make_transformer_engine(const Mode& mode, at::Device device,
                                                   const PrecisionOptions& options) {
  return std::make_unique<TransformerEngine>(compute_dtype(mode, device, options), device,
                                             fp8_layers(mode, options),
                                             narrow_weights(mode, device, options));
}

/// Makes a mode whose weights are quantized.
std::unique_ptr<Precision> make_quantized(const Mode& mode, at::Device device,
                                          const PrecisionOptions& options) {
  const Format format = *mode.traits.weights;
  QuantizedPrecisionOptions made;
  made.dtype = compute_dtype(mode, device, options);
  made.weights = {.format = format,
                  .compress_statistics = mode.traits.double_quantized,
                  .blocksize = options.blocksize.value_or(64),
                  .threshold = options.llm_int8_threshold.value_or(6),
                  .ignore_modules = options.ignore_modules,
                  .embeddings = options.quantize_embeddings.value_or(false),
                  .convolutions = options.quantize_convolutions.value_or(false)};
  if (format != Format::kInt8) check_options({.format = format, .blocksize = made.weights.blocksize});
  made.scaler = make_scaler(mode, device, options, options.loss_scale.value_or("none"),
                            /*fp16_gradients=*/true);
  return std::make_unique<QuantizedPrecision>(mode.name, device, std::move(made));
}

/// Makes the mode that trains in 8 bits: float32 weights whose layers multiply in int8, the rest as in 16-mixed.
std::unique_ptr<Precision> make_int8_training(const Mode& mode, at::Device device,
                                              const PrecisionOptions& options) {
  Int8TrainingOptions made{.threshold = options.llm_int8_threshold.value_or(6),
                           .ignore_modules = options.ignore_modules};
  made.scaler = make_scaler_of_mixed(mode, device, options);
  return std::make_unique<Int8Training>(device, std::move(made));
}

/// The products of a row in 4 bits are in the dtype that most devices have.
PrecisionTraits quantized_4bit(Format weights, bool double_quantized = false) {
  return {.weights = weights,
          .compute = Format::kBFloat16,
          .frozen_weights = true,
          .double_quantized = double_quantized};
}

PrecisionTraits quantized_8bit() {
  return {.weights = Format::kInt8,
          .compute = Format::kFloat16,
          .frozen_weights = true,
          .layer_products = Format::kInt8};
}

PrecisionTraits mixed(Format compute) {
  return {.compute = compute, .scales_loss = compute == Format::kFloat16};
}

PrecisionTraits with_layer_products(PrecisionTraits traits, Format products) {
  traits.layer_products = products;
  return traits;
}

PrecisionTraits pure(Format format) { return {.weights = format, .compute = format, .gradients = format}; }

PrecisionTraits apex_o2() {
  return {
      .weights = Format::kFloat16, .compute = Format::kFloat16, .scales_loss = true, .master_weights = true};
}

}  // namespace

const std::vector<Mode>& modes() {
  static const std::vector<Mode> table{
      {"32-true", {"32"}, "weights and arithmetic as built, usually float32", {}, &make_as_built},
      {"tf32-mixed", {}, "float32 weights, TF32 products", mixed(Format::kTF32), &make_tf32},
      {"64-true", {"64"}, "float64 weights and arithmetic", pure(Format::kFloat64), &make_wide},
      {"16-mixed",
       {"16"},
       "float32 weights, fp16 products, scaled gradients",
       mixed(Format::kFloat16),
       &make_mixed},
      {"bf16-mixed", {"bf16"}, "float32 weights, bf16 products", mixed(Format::kBFloat16), &make_mixed},
      {"16-true", {}, "fp16 weights, activations and gradients", pure(Format::kFloat16), &make_narrow},
      {"bf16-true", {}, "bf16 weights, activations and gradients", pure(Format::kBFloat16), &make_narrow},
      {"nf4",
       {},
       "frozen weights in 4 bits (NF4), bf16 products",
       quantized_4bit(Format::kNF4),
       &make_quantized},
      {"nf4-dq",
       {},
       "as nf4, with double quantization: the scales in 8 bits",
       quantized_4bit(Format::kNF4, true),
       &make_quantized},
      {"fp4",
       {},
       "frozen weights in 4 bits (FP4), bf16 products",
       quantized_4bit(Format::kFP4),
       &make_quantized},
      {"fp4-dq",
       {},
       "as fp4, with double quantization: the scales in 8 bits",
       quantized_4bit(Format::kFP4, true),
       &make_quantized},
      {"int8",
       {},
       "frozen weights and products in 8 bits (LLM.int8), outliers of the input in float32",
       quantized_8bit(),
       &make_quantized},
      {"int8-training",
       {},
       "float32 weights that train, products of Linear layers in 8 bits, the rest as 16-mixed",
       with_layer_products(mixed(Format::kFloat16), Format::kInt8),
       &make_int8_training},
      {"fp8-mixed",
       {},
       "float32 weights, FP8 products in Linear layers, the rest as bf16-mixed",
       with_layer_products(mixed(Format::kBFloat16), Format::kFloat8E4M3),
       &make_fp8_mixed},
      {"transformer-engine",
       {},
       "bf16 weights, FP8 products in all Linear layers, the rest as bf16-true under autocast",
       with_layer_products(pure(Format::kBFloat16), Format::kFloat8E4M3),
       &make_transformer_engine},
      {"transformer-engine-float16",
       {},
       "as transformer-engine, with fp16 in place of bf16",
       with_layer_products(pure(Format::kFloat16), Format::kFloat8E4M3),
       &make_transformer_engine},
      {"O0", {}, "Apex: float32 throughout", pure(Format::kFloat32), &make_wide, true},
      {"O1", {}, "Apex: as 16-mixed", mixed(Format::kFloat16), &make_mixed, true},
      {"O2",
       {},
       "Apex: fp16 weights with master weights and batch norm in float32, scaled gradients",
       apex_o2(),
       &make_narrow,
       true},
      {"O3", {}, "Apex: as 16-true", pure(Format::kFloat16), &make_narrow, true},
  };
  return table;
}

const Mode& find_mode(const std::string& name) {
  std::vector<std::string> allowed, canonical, historical;
  for (const Mode& mode : modes()) {
    if (name == mode.name) return mode;
    for (const std::string& alias : mode.aliases) {
      if (name != alias) continue;
      // Lightning's rule: "32" and "64" can mean only one thing; "16" and "bf16" once meant another.
      if (!alias.starts_with("32") && !alias.starts_with("64")) {
        TORCH_WARN("precision '", alias, "' is a historical alias; write '", mode.name, "'");
      }
      return mode;
    }
    (mode.historical ? historical : canonical).push_back(mode.name);
    allowed.insert(allowed.end(), mode.aliases.begin(), mode.aliases.end());
  }
  allowed.insert(allowed.begin(), canonical.begin(), canonical.end());
  allowed.insert(allowed.end(), historical.begin(), historical.end());
  canonical.insert(canonical.end(), historical.begin(), historical.end());
  TORCH_CHECK_VALUE(false, "precision '", name, "' is not a mode", suggest_modes(name, canonical),
                    "; allowed: ", join_names(allowed));
}

const Mode* mode_for_weights(Format format, bool double_quantized) {
  for (const Mode& mode : modes())
    if (mode.traits.frozen_weights && mode.traits.weights == format &&
        mode.traits.double_quantized == double_quantized)
      return &mode;
  return nullptr;
}

const Mode* mode_for_dtype(at::ScalarType dtype) {
  const std::optional<Format> format = format_of(dtype);
  for (const Mode& mode : modes())
    if (mode.traits.compute == format && mode.traits.weights.value_or(Format::kFloat32) == format)
      return &mode;
  return nullptr;
}

PrecisionTraits traits_of(const Mode& mode, const PrecisionOptions& options) {
  PrecisionTraits traits = mode.traits;
  if (options.dtype) traits.compute = format_of(*options.dtype).value_or(traits.compute);
  if (options.loss_scale) traits.scales_loss = *options.loss_scale != "none";
  const bool needs_masters = options.fp8_primary_weights.value_or(false);
  if (options.master_weights || needs_masters) {
    traits.master_weights = options.master_weights.value_or(needs_masters);
    traits.gradients = traits.master_weights ? Format::kFloat32 : traits.weights.value_or(traits.gradients);
  }
  return traits;
}

FormatSupportInfo mode_support(const Mode& mode, at::Device device) {
  const FormatSupportInfo support = format_support(device, mode.traits.compute);
  const bool is_fp8 = mode.traits.layer_products == Format::kFloat8E4M3;
  if (is_fp8 && support.support != FormatSupport::kUnavailable) return fp8_support(device, DelayedScaling());
  // Quantized modes compute in float16 where there is no bfloat16.
  if (support.support == FormatSupport::kUnavailable && mode.traits.frozen_weights)
    return format_support(device, Format::kFloat16);
  return support;
}

std::unique_ptr<Precision> make_precision(const std::string& name, at::Device device,
                                          const PrecisionOptions& options) {
  const Mode& mode = find_mode(name);
  check_values(options);
  const FormatSupportInfo support = mode_support(mode, device);
  TORCH_CHECK_VALUE(support.support != FormatSupport::kUnavailable, "precision '", mode.name,
                    "' cannot run on ", device.str(), ": ", support.reason,
                    "; `mantissa modes` lists what can");
  check_uses(mode, device, options);
  std::unique_ptr<Precision> precision = mode.make(mode, device, options);
  if (options.float32_matmul_precision)
    precision->set_float32_matmul_precision(options.float32_matmul_precision);
  return precision;
}

std::string mode_of_amp_flags(const std::string& precision, const std::string& amp_backend,
                              const std::string& amp_level) {
  if (amp_backend.empty() || amp_backend == "native") {
    TORCH_CHECK_VALUE(amp_level.empty(), "amp_level '", amp_level,
                      "' is one of Apex's; give amp_backend 'apex' with it, or leave it out");
    return precision;
  }
  TORCH_CHECK_VALUE(amp_backend == "apex", "amp_backend '", amp_backend, "' is not a valid value",
                    did_you_mean(amp_backend, {"native", "apex"}), "; choose native or apex");
  const std::vector<std::string> levels{"O0", "O1", "O2", "O3"};
  const bool names_a_level = std::find(levels.begin(), levels.end(), precision) != levels.end();
  const std::string level = !amp_level.empty() ? amp_level : names_a_level ? precision : "O2";
  TORCH_CHECK_VALUE(
      precision.empty() || precision == "16" || precision == "16-mixed" || precision == level, "precision '",
      precision,
      "' with amp_backend 'apex', whose modes are the levels O0 to O3; leave precision out, and choose by "
      "amp_level");
  TORCH_CHECK_VALUE(std::find(levels.begin(), levels.end(), level) != levels.end(), "amp_level '", amp_level,
                    "' is not a valid value", did_you_mean(amp_level, levels), "; choose from ",
                    join_names(levels));
  return level;
}

}  // namespace mantissa
