#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "mantissa/core/device.h"
#include "mantissa/fp8/fp8_device.h"
#include "mantissa/fp8/recipe.h"
#include "mantissa/precision/precision.h"

namespace mantissa {

/// Options of a mode beyond its name; unset: the mode's own. The first three names are Apex's. The options of
/// the loss scale have the names, meanings and defaults of GradScalerOptions.
struct PrecisionOptions {
  /// "dynamic" (grows and backs off), a number (stays fixed; overflowed steps are skipped), or "none". For
  /// fp16 modes.
  std::optional<std::string> loss_scale = std::nullopt;
  /// For modes with 16-bit weights: batch norm stays in float32.
  std::optional<bool> keep_batchnorm_fp32 = std::nullopt;
  /// For modes with 16-bit weights: the optimizer steps master weights in float32.
  std::optional<bool> master_weights = std::nullopt;
  /// "highest", "high" or "medium": how exactly float32 matrix products are computed during a run, in the
  /// whole process (see set_float32_matmul_precision()). Unset: the mode's setting or, if it has none, the
  /// process's.
  std::optional<std::string> float32_matmul_precision = std::nullopt;

  /// For a dynamic loss scale: where it starts (unset: 65536, clamped to the limits), how it moves, and its
  /// limits (unset: float32's range; for Apex's levels at most 2^24, or init_scale if that is more).
  std::optional<double> init_scale = std::nullopt, growth_factor = std::nullopt,
                        backoff_factor = std::nullopt, min_scale = std::nullopt, max_scale = std::nullopt;
  std::optional<int64_t> growth_interval = std::nullopt, hysteresis_steps = std::nullopt;
  /// For any loss scale.
  std::optional<int64_t> warn_after_skips = std::nullopt;

  // For modes with quantized weights.

  /// The dtype of products: float32, float16 or bfloat16. Unset: bfloat16 where the device has it, else float16.
  /// int8 supports only float16.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// Layers whose dotted name begins with one of these stay as they are: "lm_head" also names "lm_head2", and
  /// "blocks.0" all layers of the module blocks.0.
  std::vector<std::string> ignore_modules = {};
  /// For 4-bit modes: the number of values that share a scale, a power of two from 32 to 4096. Unset: 64.
  std::optional<int64_t> blocksize = std::nullopt;
  /// For int8: the magnitude from which a column of a layer's input counts as an outlier, which is computed in
  /// float32; 0: none. Unset: 6. The name is transformers'.
  std::optional<double> llm_int8_threshold = std::nullopt;
  /// Also quantizes embeddings and convolutions, which stay as they are otherwise.
  std::optional<bool> quantize_embeddings = std::nullopt, quantize_convolutions = std::nullopt;

  // For modes with FP8 products.

  /// How layers find their scales. Unset: DelayedScaling. make_fp8_recipe() makes one from text.
  std::optional<Fp8Recipe> recipe = std::nullopt;
  /// Whether the first and the last Linear of a model compute in FP8, too. Unset: false in fp8-mixed, true in transformer-engine.
  std::optional<bool> fp8_first_and_last = std::nullopt;
  /// For modes with FP8 products and 16-bit weights: the weights of their layers are stored as FP8 codes, and the optimizer steps
  /// master weights.
  std::optional<bool> fp8_primary_weights = std::nullopt;
  /// Whether the device multiplies FP8 codes by instructions of its own (fp8_support()). Unset: kAuto, where it has them.
  std::optional<Fp8Native> fp8_native = std::nullopt;

  bool operator==(const PrecisionOptions&) const = default;
};

/// A row of the table of modes: everything that the command line, the tests and make_precision() know about a
/// mode.
struct Mode {
  std::string name;                  ///< canonical, for example "bf16-mixed"
  std::vector<std::string> aliases;  ///< accepted as well; those not starting with 32 or 64 warn
  std::string summary;               ///< one line for --help and `mantissa modes`
  PrecisionTraits traits;            ///< without options; traits_of() applies those
  /// make_precision() has checked that all options have a use in the mode.
  std::unique_ptr<Precision> (*make)(const Mode&, at::Device, const PrecisionOptions&);
  bool historical = false;  ///< true for Apex's levels: another mode's numerics under an older name
};

/// Returns every mode, in the order in which users should read them.
const std::vector<Mode>& modes();

/// Returns the row for a name or an alias.
/// Errors: c10::ValueError that repeats the name and lists the allowed ones.
const Mode& find_mode(const std::string& name);

/// Returns the mode whose frozen weights are quantized so, such as nf4-dq; null if there is none.
const Mode* mode_for_weights(Format format, bool double_quantized);
/// Returns the mode whose weights and products are in `dtype`, such as bf16-true; null if there is none.
const Mode* mode_for_dtype(at::ScalarType dtype);

/// Returns the traits of a mode with these options.
PrecisionTraits traits_of(const Mode& mode, const PrecisionOptions& options);

/// Whether `mode` runs natively, is emulated or does not run on `device`, and why.
FormatSupportInfo mode_support(const Mode& mode, at::Device device);

/// Makes the mode for a precision named as Lightning names them: "16-mixed", "bf16", 32, ...
/// Errors: c10::ValueError if the name is unknown, if the device cannot run the mode, or if an option is out
///         of range or has no use in the mode.
std::unique_ptr<Precision> make_precision(const std::string& name, at::Device device,
                                          const PrecisionOptions& options = {});
/// Accepts whole numbers only: 32.0 is no precision and does not compile.
template <std::integral Bits>
std::unique_ptr<Precision> make_precision(Bits bits, at::Device device,
                                          const PrecisionOptions& options = {}) {
  return make_precision(std::to_string(bits), device, options);
}

/// Returns the mode that the flags of Lightning 1.5 name: `precision` itself for amp_backend "native" (or
/// none), and for "apex" the level, by default "O2".
/// Errors: c10::ValueError for another backend, for a level without Apex, and for a `precision` other than 16
///         with Apex.
std::string mode_of_amp_flags(const std::string& precision, const std::string& amp_backend,
                              const std::string& amp_level);

}  // namespace mantissa
