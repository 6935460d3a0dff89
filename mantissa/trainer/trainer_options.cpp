#include "mantissa/trainer/trainer_options.h"

#include <cctype>
#include <cmath>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/amp/matmul_precision.h"
#include "mantissa/core/suggest.h"
#include "mantissa/kernels/aten/choice.h"

namespace mantissa {
namespace {

void check_precision(const TrainerOptions& options) {
  TORCH_CHECK_VALUE(!options.precision || !options.precision_plugin, "Trainer: both precision='",
                    options.precision.value_or(""), "' and a precision_plugin were given; choose one");
  const bool has_precision_settings = options.precision_options != PrecisionOptions{} ||
                                      options.amp_backend != "native" || !options.amp_level.empty();
  TORCH_CHECK_VALUE(
      !has_precision_settings || !options.precision_plugin,
      "Trainer: precision_options, amp_backend and amp_level apply to modes chosen by name, not to a "
      "precision_plugin; configure the plugin itself, or leave it out");
  check_cpu_kernel_pins(options.cpu_kernels);
  if (const auto& matmul = options.precision_options.float32_matmul_precision)
    check_float32_matmul_precision(*matmul);
}

void check_length(const TrainerOptions& options) {
  TORCH_CHECK_VALUE(options.max_epochs >= -1 && options.max_steps >= -1,
                    "Trainer: max_epochs and max_steps are counts, or -1 for no limit; got max_epochs=",
                    options.max_epochs, ", max_steps=", options.max_steps);
  TORCH_CHECK_VALUE(options.max_epochs != -1 || options.max_steps != -1 || options.max_time,
                    "Trainer: max_epochs and max_steps are both -1, so training would never end; set one of "
                    "them, or max_time");
  TORCH_CHECK_VALUE(!options.max_time || options.max_time->count() > 0, "Trainer: max_time is ",
                    options.max_time ? options.max_time->count() : 0,
                    " ms; give a time above 0, or leave it out");
  TORCH_CHECK_VALUE(options.min_epochs >= 0 && options.min_steps >= 0,
                    "Trainer: min_epochs and min_steps are counts; got min_epochs=", options.min_epochs,
                    ", min_steps=", options.min_steps);
  TORCH_CHECK_VALUE(options.max_epochs < 0 || options.min_epochs <= options.max_epochs,
                    "Trainer: min_epochs=", options.min_epochs, " is above max_epochs=", options.max_epochs,
                    "; raise max_epochs, or set it to -1 and give max_steps");
  TORCH_CHECK_VALUE(options.max_steps < 0 || options.min_steps <= options.max_steps,
                    "Trainer: min_steps=", options.min_steps, " is above max_steps=", options.max_steps,
                    "; raise max_steps, or set it to -1");
}

void check_batches(const TrainerOptions& options) {
  options.limit_train_batches.check("limit_train_batches");
  options.limit_val_batches.check("limit_val_batches");
  options.limit_test_batches.check("limit_test_batches");
  options.limit_predict_batches.check("limit_predict_batches");
  options.overfit_batches.check("overfit_batches");
  options.val_check_interval.check("val_check_interval");
  TORCH_CHECK_VALUE(!options.val_check_interval.is_none(),
                    "Trainer: val_check_interval is 0; give a number of batches or a share of the epoch, and "
                    "limit_val_batches=0 for no validation");
  TORCH_CHECK_VALUE(options.check_val_every_n_epoch.value_or(1) >= 1,
                    "Trainer: check_val_every_n_epoch must be at least 1, got ",
                    options.check_val_every_n_epoch.value_or(1));
  TORCH_CHECK_VALUE(options.check_val_every_n_epoch || !options.val_check_interval.is_share(),
                    "Trainer: without check_val_every_n_epoch, val_check_interval counts batches over all "
                    "epochs, but it is the share ",
                    options.val_check_interval.to_string(), "; give an integer");
  TORCH_CHECK_VALUE(options.fast_dev_run >= 0,
                    "Trainer: fast_dev_run is a number of batches, or 0 for none; got ",
                    options.fast_dev_run);
  TORCH_CHECK_VALUE(options.num_sanity_val_steps >= -1,
                    "Trainer: num_sanity_val_steps is a count, or -1 for all batches; got ",
                    options.num_sanity_val_steps);
}

void check_loggers(const TrainerOptions& options) {
  TORCH_CHECK_VALUE(options.log_every_n_steps >= 0,
                    "Trainer: log_every_n_steps is a count, or 0 for never; got ", options.log_every_n_steps);
  for (const auto& logger : options.loggers)
    TORCH_CHECK_VALUE(logger, "Trainer: one of the loggers is null; leave it out");
}

}  // namespace

GradientClipAlgorithm parse_clip_algorithm(std::string name) {
  const std::string given = name;
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  TORCH_CHECK_VALUE(name == "norm" || name == "value", "unknown gradient_clip_algorithm '", given, "'",
                    did_you_mean(given, {"norm", "value"}), "; choose norm or value");
  return name == "norm" ? GradientClipAlgorithm::kNorm : GradientClipAlgorithm::kValue;
}

bool parse_on_overflow(const std::string& name) {
  TORCH_CHECK_VALUE(name == "skip" || name == "retry", "unknown on_overflow '", name, "'",
                    did_you_mean(name, {"skip", "retry"}), "; choose skip or retry");
  return name == "retry";
}

void check(const TrainerOptions& options) {
  check_precision(options);
  check_loggers(options);
  check_length(options);
  check_batches(options);
  options.accumulate_grad_batches.check();
  TORCH_CHECK_VALUE(options.gradient_clip_val >= 0,
                    "Trainer: gradient_clip_val must be at least 0 (0: no clipping), got ",
                    options.gradient_clip_val);
  parse_clip_algorithm(options.gradient_clip_algorithm);
  parse_on_overflow(options.on_overflow);
  for (const auto& callback : options.callbacks)
    TORCH_CHECK_VALUE(callback, "Trainer: a callback is null; leave it out");
}

}  // namespace mantissa
