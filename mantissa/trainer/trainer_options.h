#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mantissa/precision/precision.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/batch_limit.h"
#include "mantissa/trainer/callback.h"
#include "mantissa/trainer/loggers/logger.h"

namespace mantissa {

class Strategy;

/// Names and meanings are Lightning's.
///
/// Designated initializers, `{.precision = "16-mixed", .max_epochs = 5}`, must follow the order below, which
/// C++ demands. Assignments need not: `TrainerOptions options; options.max_epochs = 5; options.device =
/// "cpu";`.
struct TrainerOptions {
  /// A name from registry.h; unset means "32-true". Not together with `precision_plugin`.
  std::optional<std::string> precision = std::nullopt;
  /// The loss scale and its numbers, float32 batch norm, master weights, float32 matrix products: what the mode is
  /// told beyond its name.
  PrecisionOptions precision_options = {};
  /// Lightning 1.5's: "native", or "apex" with amp_level "O0" to "O3"; see mode_of_amp_flags().
  std::string amp_backend = "native", amp_level = {};
  /// Hooks of the user's own. Not together with any of the above.
  std::shared_ptr<Precision> precision_plugin = nullptr;
  /// Which kernels compute what is of 16 bits on the CPU, as pin_cpu_kernels() takes it, from the first run
  /// on for the whole process. Empty: the fastest here, and a resumed run's as its checkpoint has them.
  std::string cpu_kernels = {};
  /// "auto" (a GPU where there is one), "cpu", "cuda", "cuda:N".
  std::string device = "auto";
  /// Joins several processes that train one model. Null: this process trains alone.
  std::shared_ptr<Strategy> strategy = nullptr;
  /// Lays out the model's 4-D weights and the batches' 4-D tensors with the channels last (5-D:
  /// channels_last_3d), as torch's model.to(memory_format=torch.channels_last) does: the format in which tensor
  /// cores convolve, and in which 16-bit convolutions of the CPU need no transposition. See channels_last.h.
  bool channels_last = false;
  /// While a run lasts, in the whole process (torch.backends.cudnn.benchmark): true has cuDNN time its
  /// algorithms for every new shape and take the fastest, which pays where shapes repeat, and may differ from
  /// run to run in the last bits. Unset: as the process has it.
  std::optional<bool> benchmark = std::nullopt;

  /// -1: no limit; then max_steps or max_time must be set.
  int64_t max_epochs = 1;
  /// Optimizer steps, skipped ones included; -1: no limit.
  int64_t max_steps = -1;
  /// Before which stop() does not end the run; max_steps, max_time and signals do.
  int64_t min_epochs = 0, min_steps = 0;
  /// Training ends with the first step after so long, time before a resume included.
  std::optional<std::chrono::milliseconds> max_time = std::nullopt;

  /// Of each epoch. 0 leaves the loop out.
  BatchLimit limit_train_batches = 1.0, limit_val_batches = 1.0, limit_test_batches = 1.0,
             limit_predict_batches = 1.0;
  /// Above 0: trains on so many batches, the same in every epoch, and validates on them: for seeing whether a
  /// model can learn at all.
  BatchLimit overfit_batches = 0.0;
  /// Above 0: one epoch of so many batches of everything (true is one), to see whether it runs: no logger, no
  /// sanity validation, no checkpoint, no early stopping.
  int64_t fast_dev_run = 0;

  /// When validation comes: after so many training batches of an epoch, or after this share of them.
  BatchLimit val_check_interval = 1.0;
  /// In every N-th epoch, and after the last. Unset: val_check_interval is a count of batches over all
  /// epochs.
  std::optional<int64_t> check_val_every_n_epoch = 1;
  /// Validation batches before training starts, so that what is wrong there is found at once; their metrics
  /// are dropped, and random numbers go on as if they had not been. -1: all of them.
  int64_t num_sanity_val_steps = 2;
  /// Validation under inference mode; false: with gradients merely off.
  bool inference_mode = true;

  /// Batches whose gradients are added before a step. The last batch of an epoch always steps.
  AccumulationSchedule accumulate_grad_batches = 1;
  /// 0: no clipping.
  double gradient_clip_val = 0;
  /// "norm" or "value", upper or lower case.
  std::string gradient_clip_algorithm = "norm";

  /// Ends a backward pass that computes nan with an error that names the operation
  /// (torch::autograd::DetectAnomalyGuard). Slow. A dynamic loss scale meets inf and nan on purpose: see
  /// trace_nonfinite for one that knows of it.
  bool detect_anomaly = false;
  /// A skipped step leaves no trace: buffers (batch norm's statistics) are as before its window; parameters,
  /// optimizer and schedule are in any case. Costs a copy of the buffers each window.
  bool transactional = false;
  /// On a skipped step, and on a loss or (without a scaler) a gradient that is not finite, runs the window
  /// again under observation and warns with the operation that made the first inf or nan: see
  /// trace_nonfinite.h. At most kMaxTraces warnings a fit; a dynamic loss scale that was too high is none,
  /// unless it is so kOverflowsInARow times in a row. Weights that are not finite are told of once, and
  /// nothing after them. Only with automatic optimization.
  /// Memory: holds the batches of a window. Sync: reads each loss, and without a scaler the size of the
  ///         gradients.
  bool trace_nonfinite = false;
  static constexpr int kMaxTraces = 10, kOverflowsInARow = 10;

  std::vector<std::shared_ptr<Callback>> callbacks = {};

  /// What the run measures goes to each of them. One that fails is told of and left out from then on.
  std::vector<std::shared_ptr<Logger>> loggers = {};
  /// Every so many optimizer steps (batches, without automatic optimization) what training_step() logged
  /// makes a row, as NAME_step; 0: never. Means over an epoch are logged in any case, as NAME.
  int64_t log_every_n_steps = 50;
};

/// What the Trainer's constructor asks first.
/// Errors: c10::ValueError for options that are out of range or do not fit together, with the cure.
void check(const TrainerOptions& options);

/// Errors: c10::ValueError for another word than norm and value.
GradientClipAlgorithm parse_clip_algorithm(std::string name);

}  // namespace mantissa
