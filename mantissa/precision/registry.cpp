#include "mantissa/precision/registry.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/core/parse_number.h"
#include "mantissa/core/suggest.h"
#include "mantissa/precision/int8_training.h"
#include "mantissa/precision/mixed.h"
#include "mantissa/precision/mode_suggestion_internal.h"
#include "mantissa/precision/quantized.h"
#include "mantissa/precision/tf32_mixed.h"
#include "mantissa/precision/true_dtype.h"
#include "mantissa/quant/quantized_4bit.h"

namespace mantissa {
namespace {

constexpr double kSmallestScale = std::numeric_limits<float>::min(),
                 kLargestScale = std::numeric_limits<float>::max();
constexpr double kApexMaxScale = 16777216;  // 2^24, the limit of Apex's dynamic scaler

/// Returns nullopt for "dynamic" and "none".
std::optional<double> fixed_scale(const std::string& loss_scale) {
  if (loss_scale == "dynamic" || loss_scale == "none") return std::nullopt;
  const ParsedNumber<double> scale = parse_number<double>(loss_scale);
  TORCH_CHECK_VALUE(!scale.is_out_of_range, "loss_scale ", scale.problem);
  TORCH_CHECK_VALUE(scale.value && *scale.value >= kSmallestScale && *scale.value <= kLargestScale,
                    "loss_scale '", loss_scale, "' is not a scale",
                    did_you_mean(loss_scale, {"dynamic", "none"}),
                    "; give dynamic, none or a number that float32 holds, above 0");
  return scale.value;
}

template <typename Number>
void check_range(const char* name, const std::optional<Number>& value, Number low, Number high,
                 const char* cure) {
  TORCH_CHECK_VALUE(!value || (*value >= low && *value <= high), name, " ", *value, " is out of range; ",
                    cure);
}

/// Refuses values that no mode can use: they are the user's mistake, whatever the mode.
void check_values(const PrecisionOptions& o) {
  constexpr int64_t kLargestCount = std::numeric_limits<int32_t>::max();  // the limit of torch's kernels
  const double above_zero = std::nextafter(0.0, 1.0), below_one = std::nextafter(1.0, 0.0),
               above_one = std::nextafter(1.0, 2.0);
  if (o.loss_scale) fixed_scale(*o.loss_scale);
  check_range("init_scale", o.init_scale, kSmallestScale, kLargestScale,
              "choose a number that float32 holds, above 0");
  check_range("growth_factor", o.growth_factor, above_one, kLargestScale,
              "choose a number above 1 (for a fixed scale, give it as loss_scale)");
  check_range("backoff_factor", o.backoff_factor, above_zero, below_one, "choose above 0 and below 1");
  check_range("growth_interval", o.growth_interval, int64_t{1}, kLargestCount, "choose 1 to 2147483647");
  check_range("min_scale", o.min_scale, 0.0, kLargestScale,
              "choose 0 (no floor) or a number that float32 holds");
  check_range("max_scale", o.max_scale, kSmallestScale, kLargestScale,
              "choose a number that float32 holds, above 0");
  check_range("hysteresis_steps", o.hysteresis_steps, int64_t{1}, kLargestCount, "choose 1 to 2147483647");
  check_range("warn_after_skips", o.warn_after_skips, int64_t{0}, std::numeric_limits<int64_t>::max(),
              "choose 0 (never) or more");
  check_range("llm_int8_threshold", o.llm_int8_threshold, 0.0, std::numeric_limits<double>::max(),
              "choose 0 (no outliers) or more");
  const double low = o.min_scale.value_or(0), high = o.max_scale.value_or(kLargestScale);
  TORCH_CHECK_VALUE(low <= high, "min_scale ", low, " is above max_scale ", high, "; choose one below it");
  TORCH_CHECK_VALUE(!o.init_scale || (*o.init_scale >= low && *o.init_scale <= high), "init_scale ",
                    *o.init_scale, " is not from min_scale ", low, " to max_scale ", high,
                    "; choose one between them");
}

/// Returns the first option given that only a dynamic scale has, such as "growth_factor 4", or "".
std::string moving_scale_option(const PrecisionOptions& o) {
  std::string found;
  const auto look = [&](const char* name, const auto& value) {
    if (found.empty() && value) found = c10::str(name, " ", *value);
  };
  look("init_scale", o.init_scale);
  look("growth_factor", o.growth_factor);
  look("backoff_factor", o.backoff_factor);
  look("growth_interval", o.growth_interval);
  look("min_scale", o.min_scale);
  look("max_scale", o.max_scale);
  look("hysteresis_steps", o.hysteresis_steps);
  return found;
}

/// Returns the first option given that any loss scale has, or "".
std::string scaler_option(const PrecisionOptions& o) {
  const std::string found = moving_scale_option(o);
  return found.empty() && o.warn_after_skips ? c10::str("warn_after_skips ", *o.warn_after_skips) : found;
}

/// Returns the names of the modes with these traits, for errors: "a, b CONJUNCTION c".
std::string modes_with(bool (*trait)(const PrecisionTraits&), const std::string& conjunction) {
  std::vector<std::string> names;
  for (const Mode& mode : modes())
    if (trait(mode.traits)) names.push_back(mode.name);
  if (names.size() < 2) return join_names(names);
  const std::string last = names.back();
  names.pop_back();
  return join_names(names) + " " + conjunction + " " + last;
}

bool has_16_bit_weights(const PrecisionTraits& traits) {
  return traits.weights && is_16_bit(*traits.weights);
}
bool has_int8_products(const PrecisionTraits& traits) { return traits.layer_products == Format::kInt8; }
/// Whether layers have codes for their weights or for the factors of their products.
bool has_quantized_layers(const PrecisionTraits& traits) {
  return traits.frozen_weights || has_int8_products(traits);
}

void refuse_loss_scale(const Mode& mode, const PrecisionOptions& options,
                       const std::string& cure = "choose 16-mixed or 16-true") {
  const std::string given =
      options.loss_scale ? "loss_scale '" + *options.loss_scale + "'" : scaler_option(options);
  TORCH_CHECK_VALUE(given.empty(), "precision '", mode.name, "' with ", given,
                    ": only fp16 gradients need a scale; leave it out, or ", cure);
}

void refuse_weight_options(const Mode& mode, const PrecisionOptions& options) {
  if (!options.keep_batchnorm_fp32 && !options.master_weights) return;
  const bool batchnorm = options.keep_batchnorm_fp32.has_value();
  TORCH_CHECK_VALUE(
      false, "precision '", mode.name, "' with ", batchnorm ? "keep_batchnorm_fp32 " : "master_weights ",
      (batchnorm ? *options.keep_batchnorm_fp32 : *options.master_weights) ? "true" : "false",
      ": its weights are not 16-bit; leave it out, or choose ", modes_with(has_16_bit_weights, "or"));
}

/// Returns "float16" where libtorch prints Half.
std::string name_of(at::ScalarType dtype) {
  const std::optional<Format> format = format_of(dtype);
  return format ? std::string(info(*format).name) : c10::str(dtype);
}

/// Returns the first option given that only quantized modes have, such as "blocksize 128", or "".
std::string quantization_option(const PrecisionOptions& o) {
  std::string found;
  const auto look = [&](const char* name, const auto& value) {
    if (found.empty() && value) found = c10::str(name, " ", *value);
  };
  const auto look_at_switch = [&](const char* name, std::optional<bool> value) {
    if (found.empty() && value) found = c10::str(name, *value ? " true" : " false");
  };
  if (o.dtype) found = "dtype " + name_of(*o.dtype);
  if (found.empty() && !o.ignore_modules.empty())
    found = "ignore_modules '" + join_names(o.ignore_modules) + "'";
  look("blocksize", o.blocksize);
  look("llm_int8_threshold", o.llm_int8_threshold);
  look_at_switch("quantize_embeddings", o.quantize_embeddings);
  look_at_switch("quantize_convolutions", o.quantize_convolutions);
  return found;
}

void refuse_quantization_options(const Mode& mode, const PrecisionOptions& options) {
  const std::string given = quantization_option(options);
  TORCH_CHECK_VALUE(given.empty(), "precision '", mode.name, "' with ", given, ": only ",
                    modes_with(has_quantized_layers, "and"),
                    " compute layers with 4- or 8-bit codes; leave it out, or choose one of them");
}

/// Returns null for "none".
std::unique_ptr<GradScaler> make_scaler(const Mode& mode, at::Device device, const PrecisionOptions& given,
                                        const std::string& loss_scale, bool fp16_gradients) {
  if (loss_scale == "none") {
    const std::string unused = scaler_option(given);
    TORCH_CHECK_VALUE(unused.empty(), "precision '", mode.name, "': ", unused,
                      " needs a loss scale; leave it out, or give loss_scale dynamic");
    return nullptr;
  }
  GradScalerOptions options{.allow_fp16_gradients = fp16_gradients};
  options.warn_after_skips = given.warn_after_skips.value_or(options.warn_after_skips);
  if (const std::optional<double> scale = fixed_scale(loss_scale)) {
    const std::string unused = moving_scale_option(given);
    TORCH_CHECK_VALUE(unused.empty(), "loss_scale ", loss_scale, " is fixed, so ", unused,
                      " has no effect; leave it out, or give loss_scale dynamic");
    options.init_scale = options.min_scale = options.max_scale = *scale;
    return std::make_unique<GradScaler>(device, options);
  }
  options.growth_factor = given.growth_factor.value_or(options.growth_factor);
  options.backoff_factor = given.backoff_factor.value_or(options.backoff_factor);
  options.growth_interval = given.growth_interval.value_or(options.growth_interval);
  options.hysteresis_steps = given.hysteresis_steps.value_or(options.hysteresis_steps);
  options.min_scale = given.min_scale.value_or(options.min_scale);
  if (mode.historical) {
    options.max_scale = std::max({kApexMaxScale, given.init_scale.value_or(0), options.min_scale});
  }
  options.max_scale = given.max_scale.value_or(options.max_scale);
  options.init_scale =
      given.init_scale.value_or(std::clamp(options.init_scale, options.min_scale, options.max_scale));
  return std::make_unique<GradScaler>(device, options);
}

at::ScalarType compute_dtype(const Mode& mode) {
  const FormatInfo& format = info(mode.traits.compute);
  TORCH_CHECK_NOT_IMPLEMENTED(format.dtype, "precision '", mode.name, "': libtorch has no dtype for ",
                              format.name, ", so its row needs a function `make` of its own");
  return *format.dtype;
}

/// Makes a mode that keeps the weights as the module was built.
std::unique_ptr<Precision> make_as_built(const Mode& mode, at::Device /*device*/,
                                         const PrecisionOptions& options) {
  refuse_loss_scale(mode, options);
  refuse_weight_options(mode, options);
  refuse_quantization_options(mode, options);
  return std::make_unique<Precision>(mode.name, mode.traits);
}

std::unique_ptr<Precision> make_tf32(const Mode& mode, at::Device /*device*/,
                                     const PrecisionOptions& options) {
  refuse_loss_scale(mode, options);
  refuse_weight_options(mode, options);
  refuse_quantization_options(mode, options);
  return std::make_unique<Tf32Mixed>(mode.name);
}

std::unique_ptr<Precision> make_wide(const Mode& mode, at::Device /*device*/,
                                     const PrecisionOptions& options) {
  refuse_loss_scale(mode, options);
  refuse_weight_options(mode, options);
  refuse_quantization_options(mode, options);
  return std::make_unique<TrueDtype>(compute_dtype(mode), TrueDtypeOptions{.name = mode.name});
}

std::unique_ptr<Precision> make_mixed(const Mode& mode, at::Device device, const PrecisionOptions& options) {
  refuse_weight_options(mode, options);
  refuse_quantization_options(mode, options);
  std::unique_ptr<GradScaler> scaler;
  if (!mode.traits.scales_loss) {
    refuse_loss_scale(mode, options);
  } else {
    scaler = make_scaler(mode, device, options, options.loss_scale.value_or("dynamic"),
                         /*fp16_gradients=*/false);
    // Pass a disabled scaler if there is no scale: a null scaler would mean the default one.
    if (!scaler) scaler = std::make_unique<GradScaler>(device, GradScalerOptions{.enabled = false});
  }
  return std::make_unique<MixedPrecision>(compute_dtype(mode), device, std::move(scaler), mode.name);
}

/// Makes a mode with 16-bit weights. A row with master weights is Apex's O2, which also keeps batch norm in
/// float32.
std::unique_ptr<Precision> make_narrow(const Mode& mode, at::Device device, const PrecisionOptions& options) {
  if (mode.traits.compute != Format::kFloat16) refuse_loss_scale(mode, options);
  refuse_quantization_options(mode, options);
  TrueDtypeOptions narrow{
      .keep_batchnorm_fp32 = options.keep_batchnorm_fp32.value_or(mode.traits.master_weights),
      .master_weights = options.master_weights.value_or(mode.traits.master_weights),
      .name = mode.name};
  narrow.scaler = make_scaler(mode, device, options,
                              options.loss_scale.value_or(mode.traits.scales_loss ? "dynamic" : "none"),
                              /*fp16_gradients=*/!narrow.master_weights);
  return std::make_unique<TrueDtype>(compute_dtype(mode), std::move(narrow));
}

/// Makes a mode whose weights are quantized.
std::unique_ptr<Precision> make_quantized(const Mode& mode, at::Device device,
                                          const PrecisionOptions& options) {
  refuse_weight_options(mode, options);
  const Format format = *mode.traits.weights;
  const bool is_int8 = format == Format::kInt8;
  TORCH_CHECK_VALUE(!is_int8 || !options.blocksize, "precision '", mode.name, "' with blocksize ",
                    *options.blocksize, ": it has one scale per row and no blocks; leave it out");
  TORCH_CHECK_VALUE(is_int8 || !options.llm_int8_threshold, "precision '", mode.name,
                    "' with llm_int8_threshold ", *options.llm_int8_threshold, ": only ",
                    modes_with(has_int8_products, "and"),
                    " treat outliers separately; leave it out, or choose one of them");
  QuantizedPrecisionOptions made;
  made.dtype = options.dtype.value_or(default_quantized_dtype(format, device));
  made.weights = {.format = format,
                  .compress_statistics = mode.traits.double_quantized,
                  .blocksize = options.blocksize.value_or(64),
                  .threshold = options.llm_int8_threshold.value_or(6),
                  .ignore_modules = options.ignore_modules,
                  .embeddings = options.quantize_embeddings.value_or(false),
                  .convolutions = options.quantize_convolutions.value_or(false)};
  if (!is_int8) check_options({.format = format, .blocksize = made.weights.blocksize});
  if (made.dtype != at::kHalf) refuse_loss_scale(mode, options, "give dtype float16");
  made.scaler = make_scaler(mode, device, options, options.loss_scale.value_or("none"),
                            /*fp16_gradients=*/true);
  return std::make_unique<QuantizedPrecision>(mode.name, device, std::move(made));
}

/// Makes the mode that trains in 8 bits: float32 weights whose layers multiply in int8, the rest as in 16-mixed.
std::unique_ptr<Precision> make_int8_training(const Mode& mode, at::Device device,
                                              const PrecisionOptions& options) {
  refuse_weight_options(mode, options);
  const at::ScalarType dtype = options.dtype.value_or(at::kHalf);
  TORCH_CHECK_VALUE(dtype == at::kHalf, "precision '", mode.name, "' with dtype ", name_of(dtype),
                    ": it only works with float16; leave dtype out");
  TORCH_CHECK_VALUE(!options.blocksize, "precision '", mode.name, "' with blocksize ", *options.blocksize,
                    ": it has one scale per row and no blocks; leave it out");
  TORCH_CHECK_VALUE(!options.quantize_embeddings && !options.quantize_convolutions, "precision '", mode.name,
                    "' with ", options.quantize_embeddings ? "quantize_embeddings" : "quantize_convolutions",
                    ": only products of Linear layers are trained in 8 bits; leave it out, or choose int8");
  Int8TrainingOptions made{.threshold = options.llm_int8_threshold.value_or(6),
                           .ignore_modules = options.ignore_modules};
  made.scaler = make_scaler(mode, device, options, options.loss_scale.value_or("dynamic"),
                            /*fp16_gradients=*/false);
  if (!made.scaler) made.scaler = std::make_unique<GradScaler>(device, GradScalerOptions{.enabled = false});
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
  if (options.master_weights) {
    traits.master_weights = *options.master_weights;
    traits.gradients = traits.master_weights ? Format::kFloat32 : traits.weights.value_or(traits.gradients);
  }
  return traits;
}

FormatSupportInfo mode_support(const Mode& mode, at::Device device) {
  const FormatSupportInfo support = format_support(device, mode.traits.compute);
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
