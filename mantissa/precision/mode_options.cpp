#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "mantissa/core/parse_number.h"
#include "mantissa/core/suggest.h"
#include "mantissa/precision/mode_options_internal.h"
#include "mantissa/precision/quantized.h"

namespace mantissa {
namespace {

constexpr double kSmallestScale = std::numeric_limits<float>::min(),
                 kLargestScale = std::numeric_limits<float>::max(),
                 kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargestCount = std::numeric_limits<int32_t>::max();  // the limit of torch's kernels
constexpr double kApexMaxScale = 16777216;  // 2^24, the limit of Apex's dynamic scaler

/// A mode, and what it was asked for.
struct Request {
  const Mode& mode;
  at::Device device;
  const PrecisionOptions& options;
};

/// Why a mode has no use for an option, and the cure; "" if it has one.
using Refusal = std::string (*)(const Request&);

/// Which loss scales use an option.
enum class ScaleUse : uint8_t { kNone, kDynamic, kAny };

struct Limits {
  double low = -kInfinity, high = kInfinity;
  const char* cure = "";
};

struct ModeOption {
  const char* name;
  std::string (*given)(const PrecisionOptions&);             ///< as errors show it: "true", "4"; "" if unset
  std::optional<double> (*number)(const PrecisionOptions&);  ///< unset also for what is no number
  Refusal refusal;
  ScaleUse scale = ScaleUse::kNone;
  Limits limits = {};
};

// How a value reads in an error.

/// Returns "float16" where libtorch prints Half.
std::string shown(at::ScalarType dtype) {
  const std::optional<Format> format = format_of(dtype);
  return format ? std::string(info(*format).name) : c10::str(dtype);
}
std::string shown(bool value) { return value ? "true" : "false"; }
std::string shown(const std::string& value) { return "'" + value + "'"; }
std::string shown(double value) { return c10::str(value); }
std::string shown(int64_t value) { return c10::str(value); }

std::string shown(Fp8Native value) { return name_of(value); }
std::string shown(const Fp8Recipe& recipe) { return std::string(recipe_name(recipe)); }

template <typename T>
std::string shown(const std::optional<T>& value) {
  return value ? shown(*value) : "";
}
std::string shown(const std::vector<std::string>& words) {
  return words.empty() ? "" : shown(join_names(words));
}

template <typename T>
std::optional<double> number_of(const T& /*no number*/) {
  return {};
}
std::optional<double> number_of(const std::optional<double>& value) { return value; }
std::optional<double> number_of(const std::optional<int64_t>& value) {
  return value ? std::optional<double>(static_cast<double>(*value)) : std::nullopt;
}

template <auto kMember>
ModeOption row(const char* name, Refusal refusal, Limits limits = {}, ScaleUse scale = ScaleUse::kNone) {
  return {.name = name,
          .given = [](const PrecisionOptions& o) { return shown(o.*kMember); },
          .number = [](const PrecisionOptions& o) { return number_of(o.*kMember); },
          .refusal = refusal,
          .scale = scale,
          .limits = limits};
}

// Which modes have a use for an option.

/// Returns the names of the modes with these traits: "a, b CONJUNCTION c".
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
bool has_frozen_weights(const PrecisionTraits& traits) { return traits.frozen_weights; }
/// Whether weights have one scale for each block of values.
bool has_blocks(const PrecisionTraits& traits) { return traits.frozen_weights && !has_int8_products(traits); }
bool has_fp8_products(const PrecisionTraits& traits) { return traits.layer_products == Format::kFloat8E4M3; }
/// Whether layers have codes for their weights or for the factors of their products.
bool has_quantized_layers(const PrecisionTraits& traits) {
  return traits.frozen_weights || has_int8_products(traits);
}
/// Whether a mode chooses among layers.
bool has_layers_of_its_own(const PrecisionTraits& traits) {
  return has_quantized_layers(traits) || has_fp8_products(traits);
}

std::string used_by_all(const Request& /*request*/) { return ""; }

std::string used_with_fp16_gradients(const Request& asked) {
  if (info(asked.mode.traits.compute).dtype &&
      compute_dtype(asked.mode, asked.device, asked.options) == at::kHalf)
    return "";
  return std::string("only fp16 gradients need a scale; leave it out, or ") +
         (asked.mode.traits.frozen_weights ? "give dtype float16" : "choose 16-mixed or 16-true");
}

std::string used_with_16_bit_weights(const Request& asked) {
  if (has_16_bit_weights(asked.mode.traits)) return "";
  return "its weights are not 16-bit; leave it out, or choose " + modes_with(has_16_bit_weights, "or");
}

/// For an option of the modes with a trait. `what` says what these do.
std::string used_by(const Request& asked, bool (*trait)(const PrecisionTraits&), const char* what) {
  if (trait(asked.mode.traits)) return "";
  return "only " + modes_with(trait, "and") + " " + what + "; leave it out, or choose one of them";
}

constexpr const char* kComputeWithCodes = "compute layers with 4- or 8-bit codes";

std::string used_by_quantized_layers(const Request& asked) {
  return used_by(asked, has_quantized_layers, kComputeWithCodes);
}
std::string used_for_layers(const Request& asked) {
  return used_by(asked, has_layers_of_its_own, kComputeWithCodes);
}
std::string used_by_fp8_layers(const Request& asked) {
  return used_by(asked, has_fp8_products, "compute layers in FP8");
}

std::string used_to_store_fp8(const Request& asked) {
  return used_by(
      asked,
      [](const PrecisionTraits& traits) { return has_fp8_products(traits) && has_16_bit_weights(traits); },
      "can store weights in FP8");
}

/// Layers of int8-training have 16-bit inputs and results.
std::string used_as_dtype(const Request& asked) {
  const PrecisionTraits& traits = asked.mode.traits;
  const bool is_fixed = has_int8_products(traits) && asked.options.dtype != at::kHalf;
  return is_fixed ? "it only works with float16; leave dtype out" : used_by_quantized_layers(asked);
}

std::string used_by_blocks(const Request& asked) {
  return has_int8_products(asked.mode.traits) ? "it has one scale per row and no blocks; leave it out"
                                              : used_by(asked, has_blocks, "have a scale for each block");
}

std::string used_for_outliers(const Request& asked) {
  return used_by(asked, has_int8_products, "treat outliers separately");
}

/// `is_on`: false asks for what such a mode does anyway.
std::string used_by_frozen_layers(const Request& asked, std::optional<bool> is_on) {
  const PrecisionTraits& traits = asked.mode.traits;
  if (has_int8_products(traits) && !traits.frozen_weights)
    return *is_on ? "only products of Linear layers are trained in 8 bits; leave it out, or choose int8" : "";
  return used_by(asked, has_frozen_weights, "store weights in 4 or 8 bits");
}
std::string used_by_embeddings(const Request& asked) {
  return used_by_frozen_layers(asked, asked.options.quantize_embeddings);
}
std::string used_by_convolutions(const Request& asked) {
  return used_by_frozen_layers(asked, asked.options.quantize_convolutions);
}

const std::vector<ModeOption>& mode_options() {
  using O = PrecisionOptions;
  constexpr auto kDynamic = ScaleUse::kDynamic;
  const double above_zero = std::nextafter(0.0, 1.0), below_one = std::nextafter(1.0, 0.0),
               above_one = std::nextafter(1.0, 2.0);
  const Limits scale{kSmallestScale, kLargestScale, "choose a number that float32 holds, above 0"},
      count{1, kLargestCount, "choose 1 to 2147483647"};
  static const std::vector<ModeOption> table{
      row<&O::loss_scale>("loss_scale", used_with_fp16_gradients),
      row<&O::init_scale>("init_scale", used_with_fp16_gradients, scale, kDynamic),
      row<&O::growth_factor>(
          "growth_factor", used_with_fp16_gradients,
          {above_one, kLargestScale, "choose a number above 1 (for a fixed scale, give it as loss_scale)"},
          kDynamic),
      row<&O::backoff_factor>("backoff_factor", used_with_fp16_gradients,
                              {above_zero, below_one, "choose above 0 and below 1"}, kDynamic),
      row<&O::growth_interval>("growth_interval", used_with_fp16_gradients, count, kDynamic),
      row<&O::min_scale>("min_scale", used_with_fp16_gradients,
                         {0, kLargestScale, "choose 0 (no floor) or a number that float32 holds"}, kDynamic),
      row<&O::max_scale>("max_scale", used_with_fp16_gradients, scale, kDynamic),
      row<&O::hysteresis_steps>("hysteresis_steps", used_with_fp16_gradients, count, kDynamic),
      row<&O::warn_after_skips>("warn_after_skips", used_with_fp16_gradients,
                                {0, kInfinity, "choose 0 (never) or more"}, ScaleUse::kAny),
      row<&O::keep_batchnorm_fp32>("keep_batchnorm_fp32", used_with_16_bit_weights),
      row<&O::master_weights>("master_weights", used_with_16_bit_weights),
      row<&O::float32_matmul_precision>("float32_matmul_precision", used_by_all),
      row<&O::dtype>("dtype", used_as_dtype),
      row<&O::ignore_modules>("ignore_modules", used_for_layers),
      row<&O::blocksize>("blocksize", used_by_blocks),
      row<&O::llm_int8_threshold>("llm_int8_threshold", used_for_outliers,
                                  {0, std::numeric_limits<double>::max(), "choose 0 (no outliers) or more"}),
      row<&O::quantize_embeddings>("quantize_embeddings", used_by_embeddings),
      row<&O::quantize_convolutions>("quantize_convolutions", used_by_convolutions),
      row<&O::recipe>("recipe", used_by_fp8_layers),
      row<&O::fp8_first_and_last>("fp8_first_and_last", used_by_fp8_layers),
      row<&O::fp8_primary_weights>("fp8_primary_weights", used_to_store_fp8),
      row<&O::fp8_native>("fp8_native", used_by_fp8_layers),
  };
  return table;
}

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

/// Returns the first given option with one of these uses, such as "growth_factor 4", or "".
std::string given_for_scale(const PrecisionOptions& options, std::initializer_list<ScaleUse> uses) {
  for (const ModeOption& option : mode_options()) {
    if (std::find(uses.begin(), uses.end(), option.scale) == uses.end()) continue;
    if (const std::string value = option.given(options); !value.empty())
      return c10::str(option.name, " ", value);
  }
  return "";
}

}  // namespace

at::ScalarType compute_dtype(const Mode& mode, at::Device device, const PrecisionOptions& options) {
  if (mode.traits.frozen_weights)
    return options.dtype.value_or(default_quantized_dtype(*mode.traits.weights, device));
  const FormatInfo& format = info(mode.traits.compute);
  TORCH_CHECK_NOT_IMPLEMENTED(format.dtype, "precision '", mode.name, "': libtorch has no dtype for ",
                              format.name, ", so its row needs a function `make` of its own");
  return *format.dtype;
}

void check_values(const PrecisionOptions& options) {
  if (options.loss_scale) fixed_scale(*options.loss_scale);
  for (const ModeOption& option : mode_options()) {
    const std::optional<double> value = option.number(options);
    TORCH_CHECK_VALUE(!value || (*value >= option.limits.low && *value <= option.limits.high), option.name,
                      " ", option.given(options), " is out of range; ", option.limits.cure);
  }
  if (options.recipe) check_recipe(*options.recipe);
  const double low = options.min_scale.value_or(0), high = options.max_scale.value_or(kLargestScale);
  TORCH_CHECK_VALUE(low <= high, "min_scale ", low, " is above max_scale ", high, "; choose one below it");
  TORCH_CHECK_VALUE(!options.init_scale || (*options.init_scale >= low && *options.init_scale <= high),
                    "init_scale ", *options.init_scale, " is not from min_scale ", low, " to max_scale ",
                    high, "; choose one between them");
}

void check_uses(const Mode& mode, at::Device device, const PrecisionOptions& options) {
  for (const ModeOption& option : mode_options()) {
    const std::string value = option.given(options);
    if (value.empty()) continue;
    const std::string refusal = option.refusal({mode, device, options});
    TORCH_CHECK_VALUE(refusal.empty(), "precision '", mode.name, "' with ", option.name, " ", value, ": ",
                      refusal);
  }
}

std::unique_ptr<GradScaler> make_scaler(const Mode& mode, at::Device device, const PrecisionOptions& given,
                                        const std::string& loss_scale, bool fp16_gradients) {
  if (loss_scale == "none") {
    const std::string unused = given_for_scale(given, {ScaleUse::kDynamic, ScaleUse::kAny});
    TORCH_CHECK_VALUE(unused.empty(), "precision '", mode.name, "': ", unused,
                      " needs a loss scale; leave it out, or give loss_scale dynamic");
    return nullptr;
  }
  GradScalerOptions options{.allow_fp16_gradients = fp16_gradients};
  options.warn_after_skips = given.warn_after_skips.value_or(options.warn_after_skips);
  if (const std::optional<double> scale = fixed_scale(loss_scale)) {
    const std::string unused = given_for_scale(given, {ScaleUse::kDynamic});
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

}  // namespace mantissa
