#include "mantissa/fp8/recipe.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include <c10/util/Exception.h>
#include <c10/util/overloaded.h>

#include "mantissa/core/formats.h"

namespace mantissa {

Fp8Format fp8_format_of(std::string_view name) {
  TORCH_CHECK_VALUE(
      name != "E5M2",
      "fp8_format: E5M2 alone has 2 bits of mantissa, too few for inputs and weights; use HYBRID, which "
      "keeps gradients in E5M2, or E4M3");
  TORCH_CHECK_VALUE(name == "E4M3" || name == "HYBRID", "fp8_format: got '", name, "'; use HYBRID or E4M3");
  return name == "E4M3" ? Fp8Format::kE4M3 : Fp8Format::kHybrid;
}

at::ScalarType fp8_dtype(Fp8Format format, Fp8Pass pass) {
  return format == Fp8Format::kHybrid && pass == Fp8Pass::kBackward ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
}

float fp8_max(at::ScalarType dtype) {
  TORCH_CHECK_TYPE(dtype == at::kFloat8_e4m3fn || dtype == at::kFloat8_e5m2, "fp8_max: got ", dtype,
                   "; use Float8_e4m3fn or Float8_e5m2");
  return static_cast<float>(info(*format_of(dtype)).largest);
}

float fp8_scale(float amax, float max, const Fp8ScaleOptions& options) {
  // Not std::max(), whose result for NaN depends on the order of its arguments.
  if (amax < options.epsilon) amax = options.epsilon;
  if (!std::isfinite(amax) || amax == 0) return 1;
  float scale = max / amax;
  if (std::isinf(scale)) scale = options.value_for_inf;
  if (options.power_of_two) scale = std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0xff800000U);
  return scale;
}

void check_recipe(const DelayedScaling& recipe) {
  TORCH_CHECK_VALUE(recipe.amax_history_len >= 1, "DelayedScaling: amax_history_len is ",
                    recipe.amax_history_len, "; a history has at least 1 step");
  constexpr int64_t kLongest = int64_t{1} << 20;
  TORCH_CHECK_VALUE(recipe.amax_history_len <= kLongest, "DelayedScaling: amax_history_len is ",
                    recipe.amax_history_len,
                    ", and each layer keeps five numbers for a step; choose at most ", kLongest,
                    ", such as Transformer Engine's 1024");
  TORCH_CHECK_VALUE(recipe.margin >= -126 && recipe.margin <= 126, "DelayedScaling: margin is ",
                    recipe.margin,
                    ", and 2^-margin would be no normal number; use a margin from -126 to 126");
}

bool DelayedScaling::operator==(const DelayedScaling& other) const {
  return fp8_format == other.fp8_format && amax_history_len == other.amax_history_len &&
         amax_compute_algo == other.amax_compute_algo && !amax_compute && !other.amax_compute &&
         margin == other.margin && reduce_amax == other.reduce_amax && fp8_dpa == other.fp8_dpa;
}

void check_recipe(const Fp8Recipe& recipe) {
  if (const auto* const delayed = std::get_if<DelayedScaling>(&recipe)) check_recipe(*delayed);
}

std::string_view recipe_name(const Fp8Recipe& recipe) {
  return std::visit(c10::overloaded([](const DelayedScaling&) { return "DelayedScaling"; },
                                    [](const Float8CurrentScaling&) { return "Float8CurrentScaling"; },
                                    [](const Float8BlockScaling&) { return "Float8BlockScaling"; },
                                    [](const MXFP8BlockScaling&) { return "MXFP8BlockScaling"; },
                                    [](const NVFP4BlockScaling&) { return "NVFP4BlockScaling"; }),
                    recipe);
}

std::string_view fp8_format_name(const Fp8Recipe& recipe) {
  return std::visit(c10::overloaded([](const NVFP4BlockScaling&) { return "E2M1"; },
                                    [](const auto& in_8_bits) {
                                      return in_8_bits.fp8_format == Fp8Format::kE4M3 ? "E4M3" : "HYBRID";
                                    }),
                    recipe);
}

Fp8Native fp8_native_of(std::string_view name) {
  TORCH_CHECK_VALUE(name == "auto" || name == "required" || name == "off", "fp8_native: got '", name,
                    "'; use auto, required or off");
  return name == "auto" ? Fp8Native::kAuto : name == "required" ? Fp8Native::kRequired : Fp8Native::kOff;
}

std::string name_of(Fp8Native native) {
  return native == Fp8Native::kAuto ? "auto" : native == Fp8Native::kRequired ? "required" : "off";
}

}  // namespace mantissa
