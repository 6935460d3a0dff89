#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace mantissa {

/// The formats of 8 bits that a recipe uses: Transformer Engine's names.
enum class Fp8Format : uint8_t {
  kE4M3,   ///< Float8_e4m3fn everywhere
  kHybrid  ///< Float8_e4m3fn for inputs and weights, Float8_e5m2 for gradients
};

/// The pass in which a tensor comes into being.
enum class Fp8Pass : uint8_t { kForward, kBackward };

/// Returns the format that Transformer Engine calls `name`: "E4M3" or "HYBRID".
/// Errors: c10::ValueError for another name; E5M2 alone has too few digits for inputs and weights.
Fp8Format fp8_format_of(std::string_view name);

/// Returns the dtype in which the format keeps the tensors of a pass.
at::ScalarType fp8_dtype(Fp8Format format, Fp8Pass pass);

/// Returns the largest finite value: 448 for Float8_e4m3fn, 57344 for Float8_e5m2.
/// Errors: c10::TypeError for another dtype.
float fp8_max(at::ScalarType dtype);

/// How the scale of a tensor or a block is found from its largest magnitude, `amax`.
struct Fp8ScaleOptions {
  bool power_of_two = false;  ///< rounds the scale down to a power of two
  float epsilon = 0;          ///< an amax below it counts as it
  /// The scale of an amax that is so small that the quotient is infinite; float32's largest number by default.
  float value_for_inf = 3.40282347e38F;

  bool operator==(const Fp8ScaleOptions&) const = default;
};

/// Returns max / amax in float32, where an amax below options.epsilon counts as options.epsilon. Returns 1 if the
/// amax that counts is 0, inf or NaN.
/// Source: Transformer Engine's compute_scale_from_amax().
float fp8_scale(float amax, float max, const Fp8ScaleOptions& options = {});

/// How delayed scaling finds the amax of a tensor from its history.
enum class AmaxComputeAlgo : uint8_t { kMax, kMostRecent };

/// Scales by the largest magnitudes of earlier steps, so that a cast reads its tensor once: Transformer Engine's
/// recipe of this name, with its fields and defaults. delayed_scaling.h has its state.
/// Source: Micikevicius et al. 2022, arXiv:2209.05433.
struct DelayedScaling {
  Fp8Format fp8_format = Fp8Format::kHybrid;
  int64_t amax_history_len = 1024;  ///< steps
  AmaxComputeAlgo amax_compute_algo = AmaxComputeAlgo::kMax;
  /// If set, takes the place of amax_compute_algo: returns the amax [tensors] of a history [steps, tensors].
  std::function<at::Tensor(const at::Tensor& history)> amax_compute = nullptr;
  int64_t margin = 0;       ///< the scale is divided by 2^margin
  bool reduce_amax = true;  ///< all ranks use the largest amax of any rank
  bool fp8_dpa = false;     ///< attention's two products are computed in FP8, too (attention_fp8.h)

  /// A recipe with a function of the user's own equals no other one.
  bool operator==(const DelayedScaling& other) const;
};

/// Throws c10::ValueError for a history without steps, or a margin that is not in [-126, 126].
void check_recipe(const DelayedScaling& recipe);

/// Scales each tensor by its own largest magnitude: exact, but a cast reads its tensor twice.
struct Float8CurrentScaling {
  Fp8Format fp8_format = Fp8Format::kHybrid;
  Fp8ScaleOptions scale = {};
  bool fp8_dpa = false;  ///< as in DelayedScaling

  bool operator==(const Float8CurrentScaling&) const = default;
};

/// Scales each block of 128 values of a row, or of 128 x 128 values of a weight, by its own largest magnitude.
/// Source: DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.
struct Float8BlockScaling {
  Fp8Format fp8_format = Fp8Format::kE4M3;
  bool power_of_two = true;
  float epsilon = 0;

  bool operator==(const Float8BlockScaling&) const = default;
};

/// Scales each block of 32 values of a row by a power of two.
/// Source: Open Compute Project 2023, Microscaling Formats (MX) Specification 1.0.
struct MXFP8BlockScaling {
  Fp8Format fp8_format = Fp8Format::kE4M3;
  bool enable_2d_quantization = false;  ///< weights in blocks of 32 x 32

  bool operator==(const MXFP8BlockScaling&) const = default;
};

/// Numbers of 4 bits (E2M1) with a scale for each block of 16 values, in 8 bits, and a float32 scale for the tensor.
/// Source: NVIDIA 2025, arXiv:2509.25149.
struct NVFP4BlockScaling {
  bool stochastic_rounding = true;        ///< of gradients
  bool random_hadamard_transform = true;  ///< of both operands of the product that is a weight's gradient
  bool enable_2d_quantization = true;     ///< weights in blocks of 16 x 16

  bool operator==(const NVFP4BlockScaling&) const = default;
};

/// How a layer finds its scales.
using Fp8Recipe = std::variant<DelayedScaling, Float8CurrentScaling, Float8BlockScaling, MXFP8BlockScaling,
                               NVFP4BlockScaling>;

/// Errors: those of check_recipe() for DelayedScaling; the other recipes have none.
void check_recipe(const Fp8Recipe& recipe);

/// Returns the name of the recipe's type, such as "DelayedScaling".
std::string_view recipe_name(const Fp8Recipe& recipe);

/// Returns the name of the recipe's format: "HYBRID", "E4M3", or "E2M1" for NVFP4BlockScaling.
std::string_view fp8_format_name(const Fp8Recipe& recipe);

/// Whether products of FP8 codes are computed by a device's own instructions.
enum class Fp8Native : uint8_t {
  kAuto,      ///< where the device has them, and emulated elsewhere
  kRequired,  ///< an error where the device lacks them
  kOff        ///< emulated everywhere
};

/// Returns the setting that is called `name`: "auto", "required" or "off".
/// Errors: c10::ValueError for another name.
Fp8Native fp8_native_of(std::string_view name);
/// Returns the name of a setting.
std::string name_of(Fp8Native native);

}  // namespace mantissa
