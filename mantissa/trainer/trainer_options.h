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

/// The options of a Trainer. Their names and meanings are those of Lightning's Trainer.
///
/// C++ requires designated initializers, `{.precision = "16-mixed", .max_epochs = 5}`, to follow the order
/// below. Assignments may come in any order:
/// `TrainerOptions options; options.max_epochs = 5; options.device = "cpu";`.
struct TrainerOptions {
  /// The name of a mode, from precision/registry.h; unset means "32-true". Cannot be combined with
  /// `precision_plugin`.
  std::optional<std::string> precision = std::nullopt;
  /// Settings of the mode beyond its name: the loss scale and its parameters, float32 batch norm, master
  /// weights, float32 matrix products.
  PrecisionOptions precision_options = {};
  /// The flags of Lightning 1.5: "native", or "apex" with amp_level "O0" to "O3"; see mode_of_amp_flags().
  std::string amp_backend = "native", amp_level = {};
  /// The user's own precision mode. Cannot be combined with any of the options above.
  std::shared_ptr<Precision> precision_plugin = nullptr;
  /// The kernels for 16-bit operations on the CPU, in the syntax of pin_cpu_kernels(). The choice holds for
  /// the whole process from the first run on. Empty: the fastest kernels on this CPU; a resumed run uses the
  /// kernels that its checkpoint names.
  std::string cpu_kernels = {};
  /// "auto" (a GPU if there is one, otherwise the CPU), "cpu", "cuda" or "cuda:N".
  std::string device = "auto";
  /// Joins several processes that train one model. Null: this process trains alone.
  std::shared_ptr<Strategy> strategy = nullptr;
  /// Stores the model's 4-D weights and the batches' 4-D tensors with the channels last (5-D:
  /// channels_last_3d), as torch's model.to(memory_format=torch.channels_last) does. Tensor cores convolve in
  /// this format, and in it 16-bit convolutions on the CPU need no transposition. See channels_last.h.
  bool channels_last = false;
  /// Sets torch.backends.cudnn.benchmark for the whole process while a run lasts. With true, cuDNN times its
  /// algorithms for every new shape and uses the fastest. This pays off if shapes repeat, but results may
  /// differ from run to run in the last bits. Unset: the process's setting stays.
  std::optional<bool> benchmark = std::nullopt;

  /// -1: no limit; then max_steps or max_time must be set.
  int64_t max_epochs = 1;
  /// Optimizer steps, skipped ones included; -1: no limit.
  int64_t max_steps = -1;
  /// Trainer::stop() does not end the run before both are reached; max_steps, max_time and signals do.
  int64_t min_epochs = 0, min_steps = 0;
  /// Training ends with the first step after this time. It includes the time of the runs that this run
  /// resumes.
  std::optional<std::chrono::milliseconds> max_time = std::nullopt;

  /// The most batches per epoch. 0 skips the training, validation, test or prediction.
  BatchLimit limit_train_batches = 1.0, limit_val_batches = 1.0, limit_test_batches = 1.0,
             limit_predict_batches = 1.0;
  /// Above 0: trains on this many batches, the same in every epoch, and validates on them. This shows whether
  /// a model can learn at all.
  BatchLimit overfit_batches = 0.0;
  /// Above 0: training, validation, test and prediction run this many batches (true means 1), and training
  /// runs one epoch. This checks that everything runs. There are no loggers, no sanity validation, no
  /// checkpoints and no early stopping.
  int64_t fast_dev_run = 0;

  /// Validation runs after this many training batches of an epoch, or after this share of them.
  BatchLimit val_check_interval = 1.0;
  /// Validation runs in every N-th epoch, and at the end of training. Unset: val_check_interval counts
  /// batches over all epochs.
  std::optional<int64_t> check_val_every_n_epoch = 1;
  /// The number of validation batches that run before training starts, so that errors in validation show up
  /// at once. Their metrics are dropped, and they do not affect later random numbers. -1: all batches.
  int64_t num_sanity_val_steps = 2;
  /// Runs validation, test and prediction in inference mode (c10::InferenceMode). false: only turns gradients
  /// off.
  bool inference_mode = true;

  /// The number of batches whose gradients are accumulated before a step. After the last batch of an epoch
  /// there is always a step.
  AccumulationSchedule accumulate_grad_batches = 1;
  /// 0: no clipping.
  double gradient_clip_val = 0;
  /// "norm" or "value", in upper or lower case.
  std::string gradient_clip_algorithm = "norm";

  /// Ends a backward pass that computes nan with an error that names the operation
  /// (torch::autograd::DetectAnomalyGuard). This is slow. A dynamic loss scale overflows on purpose from time
  /// to time; trace_nonfinite takes that into account, and this option does not.
  bool detect_anomaly = false;
  /// What becomes of a step whose gradients overflow at the loss scale. "skip": it is left out, and training continues with the
  /// next batch at a lower scale. "retry": its accumulation window is computed again at the lower scale, with the same
  /// random numbers and buffers, until its gradients are finite, so that no batch is lost and the weights have the bits of a
  /// run that had this scale from the start. A window is skipped after all if one of its losses is not finite, or if its
  /// gradients are not finite at a scale below 1, because no scale cures these; the scale is then lowered once. Each retry
  /// calls training_step() and the hooks from on_before_zero_grad() to on_before_optimizer_step() again. What
  /// training_step() logs counts once. A mode without a loss scale has no overflows. This works only with automatic
  /// optimization and a dynamic scale.
  /// Memory: "retry" keeps the batches of a window and a copy of the buffers for each.
  /// Sync:   "retry" reads whether each step was skipped.
  std::string on_overflow = "skip";
  /// The most retries of a window.
  static constexpr int kMaxRetries = 100;
  /// Undoes a skipped step completely: buffers (such as batch norm's statistics) get back the values that
  /// they had before its accumulation window (the batches of one step). A skipped step never changes
  /// parameters, optimizer and schedule. This option costs a copy of the buffers per window.
  bool transactional = false;
  /// If a step is skipped, or a loss or (without a scaler) a gradient is not finite, runs the accumulation
  /// window again and observes each operation. A warning names the operation that produced the first inf or
  /// nan: see trace_nonfinite.h. A fit gives at most kMaxTraces such warnings. Steps that a dynamic loss
  /// scale skips because it is too high are traced only after kOverflowsInARow skipped steps in a row.
  /// Weights that are not finite are reported once, and tracing ends. This works only with automatic
  /// optimization.
  /// Memory: keeps the batches of a window.
  /// Sync:   reads each loss and, without a scaler, whether the gradients are finite.
  bool trace_nonfinite = false;
  static constexpr int kMaxTraces = 10, kOverflowsInARow = 10;

  std::vector<std::shared_ptr<Callback>> callbacks = {};

  /// Each logger receives the rows of the run. A logger that fails is reported and then left out.
  std::vector<std::shared_ptr<Logger>> loggers = {};
  /// Every N optimizer steps (without automatic optimization: every N batches), the values logged by
  /// training_step() make a row, under NAME_step; 0: never. Means over an epoch are always logged, under
  /// NAME.
  int64_t log_every_n_steps = 50;
};

/// Checks the options. The Trainer's constructor calls this function first.
/// Errors: c10::ValueError for options that are out of range or do not fit together; the message names a
///         remedy.
void check(const TrainerOptions& options);

/// Errors: c10::ValueError for a name other than "norm" and "value".
GradientClipAlgorithm parse_clip_algorithm(std::string name);

/// Returns whether on_overflow is "retry".
/// Errors: c10::ValueError for a name other than "skip" and "retry".
bool parse_on_overflow(const std::string& name);

}  // namespace mantissa
