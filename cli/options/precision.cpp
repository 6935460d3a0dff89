#include <fmt/format.h>
#include <string>
#include <vector>

#include "cli/fit_options.h"
#include "cli/option_destination.h"
#include "cli/options/groups.h"
#include "mantissa/amp/grad_scaler.h"
#include "mantissa/precision/quantize_module.h"

namespace mantissa::cli {
namespace {

std::vector<std::string> with(std::vector<std::string> names, const std::string& another) {
  names.push_back(another);
  return names;
}

const std::vector<std::string>& auto_or_truth() {
  static const std::vector<std::string> words{"auto", "true", "false"};
  return words;
}

/// Returns a default of the library as the help shows it.
template <typename Number>
std::string shown(Number value) {
  return fmt::format("{}", value);
}

}  // namespace

std::vector<Option> precision_options() {
  constexpr auto kGroup = Group::kPrecision;
  const GradScalerOptions scaler;
  const QuantizeModuleOptions quantized;
  return {
      {.name = "precision",
       .group = kGroup,
       .to = to(&TrainerOptions::precision),
       .default_value = "bf16-mixed",
       .help =
           "a mode of `mantissa modes`; several with commas: the first one, and those to fall back to (see "
           "--fallback); or all: every mode in turn",
       .choices = with(registered_names(Registry::kModes), "all"),
       .is_list = true,
       .in_resume = true,
       .in_trained = true,
       .help_elsewhere = "a mode of `mantissa modes`",
       .known_as = {"dtype", "amp"}},
      {.name = "fallback",
       .group = kGroup,
       .to = to_list(&FitOptions::fallback),
       .default_value = "none",
       .help = "comma-separated modes: if the training diverges, it continues from its last good checkpoint "
               "in the next of them; or none",
       .choices = with(registered_names(Registry::kModes), "none"),
       .is_list = true,
       .in_resume = true},
      {.name = "loss_scale",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::loss_scale),
       .default_value = "auto",
       .help = "loss scale of fp16 modes: dynamic, none or a number; auto: the mode's own"},
      {.name = "init_scale",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::init_scale),
       .default_value = "auto",
       .help = "dynamic loss scale: initial value; auto: " + shown(scaler.init_scale)},
      {.name = "growth_factor",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::growth_factor),
       .default_value = "auto",
       .help = "dynamic loss scale: growth factor; auto: " + shown(scaler.growth_factor)},
      {.name = "backoff_factor",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::backoff_factor),
       .default_value = "auto",
       .help =
           "dynamic loss scale: backoff factor, after an overflow; auto: " + shown(scaler.backoff_factor)},
      {.name = "growth_interval",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::growth_interval),
       .default_value = "auto",
       .help = "dynamic loss scale: growth interval, in steps without overflow; auto: " +
               shown(scaler.growth_interval)},
      {.name = "min_scale",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::min_scale),
       .default_value = "auto",
       .help = "dynamic loss scale: minimum; 0: none; auto: 2^-126",
       .also_called = "min_loss_scale"},
      {.name = "max_scale",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::max_scale),
       .default_value = "auto",
       .help = "dynamic loss scale: maximum; auto: float32's largest number, 2^24 for Apex's levels",
       .also_called = "max_loss_scale"},
      {.name = "hysteresis_steps",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::hysteresis_steps),
       .default_value = "auto",
       .help = "dynamic loss scale: hysteresis, in overflows until it backs off; auto: " +
               shown(scaler.hysteresis_steps)},
      {.name = "warn_after_skips",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::warn_after_skips),
       .default_value = "auto",
       .help = "warn after this many skipped or retried steps in a row; 0: never; auto: " +
               shown(scaler.warn_after_skips)},
      {.name = "keep_batchnorm_fp32",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::keep_batchnorm_fp32),
       .default_value = "auto",
       .help = "keep batch norm in float32 with 16-bit weights: true, false or auto: the mode's own",
       .choices = auto_or_truth()},
      {.name = "master_weights",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::master_weights),
       .default_value = "auto",
       .help = "use master weights (float32) with 16-bit weights: true, false or auto: the mode's own",
       .choices = auto_or_truth()},
      {.name = "quant_dtype",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::dtype),
       .default_value = "auto",
       .help = "quantized modes: dtype of products; auto: bfloat16 if the device has it, float16 for int8",
       .choices = {"auto", "float32", "float16", "bfloat16"},
       .in_library = "dtype",
       .known_as = {"compute_dtype", "bnb_4bit_compute_dtype"}},
      {.name = "ignore_modules",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::ignore_modules),
       .default_value = "auto",
       .help = "quantized and FP8 modes: comma-separated name prefixes of layers to leave as they are; auto: "
               "none",
       .is_list = true,
       .known_as = {"llm_int8_skip_modules"}},
      {.name = "blocksize",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::blocksize),
       .default_value = "auto",
       .help = "4-bit modes: values per scale, a power of two from 32 to 4096; auto: " +
               shown(quantized.blocksize),
       .known_as = {"block_size"}},
      {.name = "llm_int8_threshold",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::llm_int8_threshold),
       .default_value = "auto",
       .help = "int8 and int8-training: input columns with a magnitude of at least this are computed in "
               "float32; 0: none; auto: " +
               shown(quantized.threshold)},
      {.name = "quantize_embeddings",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::quantize_embeddings),
       .default_value = "auto",
       .help = "quantized modes: quantize embeddings too: true, false or auto: false",
       .choices = auto_or_truth()},
      {.name = "quantize_convolutions",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::quantize_convolutions),
       .default_value = "auto",
       .help = "quantized modes: quantize convolutions too: true, false or auto: false",
       .choices = auto_or_truth()},
      {.name = "recipe",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::recipe),
       .default_value = "auto",
       .help = "FP8 modes: how scales are found, for example DelayedScaling,amax_history_len=16; also "
               "Float8CurrentScaling, Float8BlockScaling, MXFP8BlockScaling and NVFP4BlockScaling; auto: "
               "DelayedScaling",
       .has_settings = true,
       .takes_map = true,
       .in_resume = true,
       .known_as = {"fp8_recipe"}},
      {.name = "fp8_first_and_last",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::fp8_first_and_last),
       .default_value = "auto",
       .help = "FP8 modes: compute the first and the last linear layer in FP8, too: true, false or auto: the "
               "mode's own",
       .choices = auto_or_truth()},
      {.name = "fp8_primary_weights",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::fp8_primary_weights),
       .default_value = "auto",
       .help =
           "transformer-engine modes: store the layers' weights as FP8 codes beside the optimizer's master "
           "weights: true, false or auto: false",
       .choices = auto_or_truth(),
       .known_as = {"fp8_model_init", "quantized_model_init", "fp8_params"}},
      {.name = "fp8_native",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::fp8_native),
       .default_value = "auto",
       .help =
           "FP8 modes: whether the device multiplies 8-bit codes itself: required, off (emulated) or auto: "
           "where it can",
       .choices = {"auto", "required", "off"}},
      {.name = "on_overflow",
       .group = kGroup,
       .to = to(&TrainerOptions::on_overflow),
       .default_value = "skip",
       .help = "fp16 modes: skip a step whose gradients overflow at the loss scale, or retry its batches at "
               "a lower scale",
       .choices = {"skip", "retry"}},
      {.name = "transactional",
       .group = kGroup,
       .to = to(&TrainerOptions::transactional),
       .default_value = false,
       .help = "a skipped step leaves batch norm's statistics as they were"},
      {.name = "trace_nonfinite",
       .group = kGroup,
       .to = to(&TrainerOptions::trace_nonfinite),
       .default_value = false,
       .help = "on a skipped step or a nan loss, find the operation it came from"},
      {.name = "detect_anomaly",
       .group = kGroup,
       .to = to(&TrainerOptions::detect_anomaly),
       .default_value = false,
       .help = "stop at the first backward pass that computes nan, and name its operation; slow"},
      {.name = "float32_matmul_precision",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::float32_matmul_precision),
       .default_value = "auto",
       .help = "precision of float32 products: highest, high (TF32 on GPUs), medium (bf16 too, on CPUs that "
               "have it) or auto: the mode's own",
       .choices = {"auto", "highest", "high", "medium"},
       .in_trained = true},
      {.name = "cpu_kernels",
       .group = kGroup,
       .to = to(&TrainerOptions::cpu_kernels),
       .default_value = "",
       .help = "which kernels compute in 16 bits on the CPU, e.g. avx2 or *product=libtorch; left out: "
               "the fastest here",
       .is_list = true,
       .in_resume = true,
       .in_trained = true},
      {.name = "amp_backend",
       .group = kGroup,
       .to = to(&TrainerOptions::amp_backend),
       .default_value = "native",
       .help = "native, or apex: --amp-level instead of --precision",
       .choices = {"native", "apex"},
       .in_library = "amp_backend"},
      {.name = "amp_level",
       .group = kGroup,
       .to = to(&TrainerOptions::amp_level),
       .default_value = "",
       .help = "Apex's O0, O1, O2 or O3",
       .choices = registered_names(Registry::kApexLevels),
       .may_be_empty = true,
       .in_library = "amp_level"},
  };
}

}  // namespace mantissa::cli
