#include "mantissa/precision/registry.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/core/parse_number.h"
#include "mantissa/core/suggest.h"
#include "mantissa/precision/mixed.h"
#include "mantissa/precision/true_dtype.h"

namespace mantissa {
namespace {

constexpr double kSmallestScale = std::numeric_limits<float>::min(),
                 kLargestScale = std::numeric_limits<float>::max();
constexpr double kApexMaxScale = 16777216;  // 2^24, of Apex's dynamic scaler

/// Null for "dynamic" and "none".
std::optional<double> fixed_scale(const std::string& loss_scale) {
  if (loss_scale == "dynamic" || loss_scale == "none") return std::nullopt;
  const ParsedNumber<double> scale = parse_number<double>(loss_scale);
  TORCH_CHECK_VALUE(!scale.is_out_of_range, "loss_scale ", scale.problem);
  TORCH_CHECK_VALUE(scale.value && *scale.value >= kSmallestScale && *scale.value <= kLargestScale,
                    "loss_scale '", loss_scale, "' is no scale",
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

/// Values that no mode can use: a mistake of the user's whatever the mode.
void check_values(const PrecisionOptions& o) {
  constexpr int64_t kLargestCount = std::numeric_limits<int32_t>::max();  // of torch's kernels
  const double above_zero = std::nextafter(0.0, 1.0), below_one = std::nextafter(1.0, 0.0),
               above_one = std::nextafter(1.0, 2.0);
  if (o.loss_scale) fixed_scale(*o.loss_scale);
  check_range("init_scale", o.init_scale, kSmallestScale, kLargestScale,
              "choose a number that float32 holds, above 0");
  check_range("growth_factor", o.growth_factor, above_one, kLargestScale,
              "choose a number above 1 (for a scale that stays give it as loss_scale)");
  check_range("backoff_factor", o.backoff_factor, above_zero, below_one, "choose above 0 and below 1");
  check_range("growth_interval", o.growth_interval, int64_t{1}, kLargestCount, "choose 1 to 2147483647");
  check_range("min_scale", o.min_scale, 0.0, kLargestScale,
              "choose 0 (no floor) or a number that float32 holds");
  check_range("max_scale", o.max_scale, kSmallestScale, kLargestScale,
              "choose a number that float32 holds, above 0");
  check_range("hysteresis_steps", o.hysteresis_steps, int64_t{1}, kLargestCount, "choose 1 to 2147483647");
  check_range("warn_after_skips", o.warn_after_skips, int64_t{0}, std::numeric_limits<int64_t>::max(),
              "choose 0 (never) or more");
  const double low = o.min_scale.value_or(0), high = o.max_scale.value_or(kLargestScale);
  TORCH_CHECK_VALUE(low <= high, "min_scale ", low, " is above max_scale ", high, "; choose one below it");
  TORCH_CHECK_VALUE(!o.init_scale || (*o.init_scale >= low && *o.init_scale <= high), "init_scale ",
                    *o.init_scale, " is not from min_scale ", low, " to max_scale ", high,
                    "; choose one between them");
}

/// "growth_factor 4": the first given of the scaler's numbers that only a scale that moves has, or "".
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

/// The same of those that any loss scale has.
std::string scaler_option(const PrecisionOptions& o) {
  const std::string found = moving_scale_option(o);
  return found.empty() && o.warn_after_skips ? c10::str("warn_after_skips ", *o.warn_after_skips) : found;
}

void refuse_loss_scale(const Mode& mode, const PrecisionOptions& options) {
  const std::string given =
      options.loss_scale ? "loss_scale '" + *options.loss_scale + "'" : scaler_option(options);
  TORCH_CHECK_VALUE(given.empty(), "precision '", mode.name, "' with ", given,
                    ": only fp16 gradients need a scale; leave it out, or choose 16-mixed or 16-true");
}

void refuse_weight_options(const Mode& mode, const PrecisionOptions& options) {
  if (!options.keep_batchnorm_fp32 && !options.master_weights) return;
  const bool batchnorm = options.keep_batchnorm_fp32.has_value();
  TORCH_CHECK_VALUE(false, "precision '", mode.name, "' with ",
                    batchnorm ? "keep_batchnorm_fp32 " : "master_weights ",
                    (batchnorm ? *options.keep_batchnorm_fp32 : *options.master_weights) ? "true" : "false",
                    ": its weights are not 16-bit; leave it out, or choose 16-true, bf16-true, O2 or O3");
}

/// Null for "none".
std::unique_ptr<GradScaler> make_scaler(const Mode& mode, at::Device device, const PrecisionOptions& told,
                                        const std::string& loss_scale, bool fp16_gradients) {
  if (loss_scale == "none") {
    const std::string given = scaler_option(told);
    TORCH_CHECK_VALUE(given.empty(), "precision '", mode.name, "' without a loss scale has no use for ",
                      given, "; leave it out, or give loss_scale dynamic");
    return nullptr;
  }
  GradScalerOptions options{.allow_fp16_gradients = fp16_gradients};
  options.warn_after_skips = told.warn_after_skips.value_or(options.warn_after_skips);
  if (const std::optional<double> scale = fixed_scale(loss_scale)) {
    const std::string given = moving_scale_option(told);
    TORCH_CHECK_VALUE(given.empty(), "loss_scale ", loss_scale, " stays, so ", given,
                      " has no meaning; leave it out, or give loss_scale dynamic");
    options.init_scale = options.min_scale = options.max_scale = *scale;
    return std::make_unique<GradScaler>(device, options);
  }
  options.growth_factor = told.growth_factor.value_or(options.growth_factor);
  options.backoff_factor = told.backoff_factor.value_or(options.backoff_factor);
  options.growth_interval = told.growth_interval.value_or(options.growth_interval);
  options.hysteresis_steps = told.hysteresis_steps.value_or(options.hysteresis_steps);
  options.min_scale = told.min_scale.value_or(options.min_scale);
  if (mode.historical) {
    options.max_scale = std::max({kApexMaxScale, told.init_scale.value_or(0), options.min_scale});
  }
  options.max_scale = told.max_scale.value_or(options.max_scale);
  options.init_scale =
      told.init_scale.value_or(std::clamp(options.init_scale, options.min_scale, options.max_scale));
  return std::make_unique<GradScaler>(device, options);
}

/// A mode whose weights stay as they are, or get another dtype and nothing else.
/// What other libraries call a dtype.
struct DtypeWord {
  std::string_view word;
  at::ScalarType dtype;
};
constexpr auto kDtypeWords = std::to_array<DtypeWord>({
    {"16", at::kHalf},        {"fp16", at::kHalf},     {"f16", at::kHalf},       {"float16", at::kHalf},
    {"half", at::kHalf},      {"bf16", at::kBFloat16}, {"b16", at::kBFloat16},   {"bfloat16", at::kBFloat16},
    {"brain", at::kBFloat16}, {"fp32", at::kFloat},    {"f32", at::kFloat},      {"float32", at::kFloat},
    {"float", at::kFloat},    {"single", at::kFloat},  {"full", at::kFloat},     {"32", at::kFloat},
    {"fp64", at::kDouble},    {"f64", at::kDouble},    {"float64", at::kDouble}, {"double", at::kDouble},
    {"64", at::kDouble},
});

/// Takes the first of `words` that stands in `text` out of it.
bool take_out(std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    const size_t at = text.find(word);
    if (at == std::string::npos) continue;
    text.erase(at, word.size());
    return true;
  }
  return false;
}

/// A question that lists the modes which a name such as "fp16", "torch.float16" or "bf16_mixed" can mean:
/// "; did you mean '16-mixed' (...) or '16-true' (...)?". For any other name it asks for the nearest mode,
/// and it is empty if none is near.
std::string modes_meant(const std::string& name, const std::vector<std::string>& names) {
  std::string text;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c))) text += static_cast<char>(std::tolower(c));
  take_out(text, {"torch"});
  take_out(text, {"precision"});
  const bool is_mixed = take_out(text, {"mixed", "amp"}),
             is_true = !is_mixed && take_out(text, {"true", "pure"});
  const auto* const found = std::find_if(kDtypeWords.begin(), kDtypeWords.end(),
                                         [&](const DtypeWord& row) { return row.word == text; });
  std::string meant;
  for (const Mode& mode : modes()) {
    const bool has_dtype = found == kDtypeWords.end() ? text.empty() && (is_mixed || is_true)
                                                      : mode.compute_dtype == found->dtype;
    if (mode.historical || !has_dtype || (is_mixed && !mode.name.ends_with("mixed")) ||
        (is_true && !mode.name.ends_with("true")))
      continue;
    meant += (meant.empty() ? "; did you mean '" : " or '") + mode.name + "' (" + mode.summary + ")";
  }
  return meant.empty() ? did_you_mean(name, names) : meant + "?";
}

template <at::ScalarType dtype>
std::unique_ptr<Precision> make_wide(const Mode& mode, at::Device /*device*/,
                                     const PrecisionOptions& options) {
  refuse_loss_scale(mode, options);
  refuse_weight_options(mode, options);
  return std::make_unique<TrueDtype>(dtype, TrueDtypeOptions{.name = mode.name});
}

std::unique_ptr<Precision> make_32_true(const Mode& mode, at::Device /*device*/,
                                        const PrecisionOptions& options) {
  refuse_loss_scale(mode, options);
  refuse_weight_options(mode, options);
  return std::make_unique<Precision>(mode.name);
}

template <at::ScalarType dtype>
std::unique_ptr<Precision> make_mixed(const Mode& mode, at::Device device, const PrecisionOptions& options) {
  refuse_weight_options(mode, options);
  if (dtype == at::kBFloat16) refuse_loss_scale(mode, options);
  std::unique_ptr<GradScaler> scaler;
  if (dtype == at::kHalf) {
    scaler = make_scaler(mode, device, options, options.loss_scale.value_or("dynamic"),
                         /*fp16_gradients=*/false);
    // Without a scale, a disabled scaler: none at all would mean the default one.
    if (!scaler) scaler = std::make_unique<GradScaler>(device, GradScalerOptions{.enabled = false});
  }
  return std::make_unique<MixedPrecision>(dtype, device, std::move(scaler), mode.name);
}

/// 16-bit weights; `apex_o2`: with all that keeps them trainable, unless told otherwise.
template <at::ScalarType dtype, bool apex_o2>
std::unique_ptr<Precision> make_narrow(const Mode& mode, at::Device device, const PrecisionOptions& options) {
  if (dtype == at::kBFloat16) refuse_loss_scale(mode, options);
  TrueDtypeOptions narrow{.keep_batchnorm_fp32 = options.keep_batchnorm_fp32.value_or(apex_o2),
                          .master_weights = options.master_weights.value_or(apex_o2),
                          .name = mode.name};
  narrow.scaler =
      make_scaler(mode, device, options, options.loss_scale.value_or(apex_o2 ? "dynamic" : "none"),
                  /*fp16_gradients=*/!narrow.master_weights);
  return std::make_unique<TrueDtype>(dtype, std::move(narrow));
}

}  // namespace

const std::vector<Mode>& modes() {
  static const std::vector<Mode> table{
      {"32-true", {"32"}, "weights and arithmetic as built, usually float32", at::kFloat, &make_32_true},
      {"64-true", {"64"}, "float64 weights and arithmetic", at::kDouble, &make_wide<at::kDouble>},
      {"16-mixed",
       {"16"},
       "float32 weights, fp16 products, scaled gradients",
       at::kHalf,
       &make_mixed<at::kHalf>},
      {"bf16-mixed", {"bf16"}, "float32 weights, bf16 products", at::kBFloat16, &make_mixed<at::kBFloat16>},
      {"16-true", {}, "fp16 weights, activations and gradients", at::kHalf, &make_narrow<at::kHalf, false>},
      {"bf16-true",
       {},
       "bf16 weights, activations and gradients",
       at::kBFloat16,
       &make_narrow<at::kBFloat16, false>},
      {"O0", {}, "Apex: float32 throughout", at::kFloat, &make_wide<at::kFloat>, true},
      {"O1", {}, "Apex: as 16-mixed", at::kHalf, &make_mixed<at::kHalf>, true},
      {"O2",
       {},
       "Apex: fp16 weights with float32 copies and batch norm, scaled gradients",
       at::kHalf,
       &make_narrow<at::kHalf, true>,
       true},
      {"O3", {}, "Apex: as 16-true", at::kHalf, &make_narrow<at::kHalf, false>, true},
  };
  return table;
}

const Mode& find_mode(const std::string& name) {
  std::vector<std::string> allowed, canonical, historical;
  for (const Mode& mode : modes()) {
    if (name == mode.name) return mode;
    for (const std::string& alias : mode.aliases) {
      if (name != alias) continue;
      // Lightning's rule: "32" and "64" can mean only one thing, "16" and "bf16" once meant another.
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
  TORCH_CHECK_VALUE(false, "precision '", name, "' is not a mode", modes_meant(name, canonical),
                    "; allowed: ", join_names(allowed));
}

DtypeSupportInfo mode_support(const Mode& mode, at::Device device) {
  return dtype_support(device, mode.compute_dtype);
}

std::unique_ptr<Precision> make_precision(const std::string& name, at::Device device,
                                          const PrecisionOptions& options) {
  const Mode& mode = find_mode(name);
  check_values(options);
  const DtypeSupportInfo support = mode_support(mode, device);
  TORCH_CHECK_VALUE(support.support != DtypeSupport::kUnavailable, "precision '", mode.name,
                    "' cannot run on ", device.str(), ": ", support.reason,
                    "; `mantissa modes` lists what can");
  return mode.make(mode, device, options);
}

std::string mode_of_amp_flags(const std::string& precision, const std::string& amp_backend,
                              const std::string& amp_level) {
  if (amp_backend.empty() || amp_backend == "native") {
    TORCH_CHECK_VALUE(amp_level.empty(), "amp_level '", amp_level,
                      "' is one of Apex's; give amp_backend 'apex' with it, or leave it out");
    return precision;
  }
  TORCH_CHECK_VALUE(amp_backend == "apex", "amp_backend '", amp_backend, "' is not one",
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
                    "' is not one", did_you_mean(amp_level, levels), "; choose from ", join_names(levels));
  return level;
}

}  // namespace mantissa
