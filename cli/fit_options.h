#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mantissa::cli {

/// What `mantissa fit` can be told, by flag or by YAML key. Unset: decided by the layer below it, in this
/// order: flags, --config, the model's recipe (recipe.h).
struct FitOptions {
  std::optional<std::string> data, model, precision, device, optimizer, lr_schedule, gradient_clip_algorithm,
      amp_backend, amp_level, float32_matmul_precision, cpu_kernels, weights, logger, monitor, output,
      max_time, callbacks, early_stopping;
  /// Batches: a count, or a share.
  std::optional<std::string> limit_train_batches, limit_val_batches, overfit_batches, val_check_interval;
  /// PrecisionOptions: what the mode has of its own when it is "auto".
  std::optional<std::string> loss_scale, init_scale, growth_factor, backoff_factor, growth_interval,
      min_scale, max_scale, hysteresis_steps, warn_after_skips, keep_batchnorm_fp32, master_weights;
  std::optional<int64_t> max_epochs, max_steps, batch_size, warmup_steps, accumulate_grad_batches, threads,
      classes, num_workers, log_every_n_steps, every_n_train_steps, save_top_k, min_epochs, min_steps,
      check_val_every_n_epoch, num_sanity_val_steps, patience, fast_dev_run;
  std::optional<uint64_t> seed;  ///< all that torch::manual_seed() takes
  std::optional<bool> stochastic_rounding, transactional, trace_nonfinite, enable_checkpointing,
      detect_anomaly, channels_last, benchmark;
  std::optional<double> lr, momentum, beta1, beta2, weight_decay, val_fraction, gradient_clip_val, ema_decay,
      min_delta;
};

/// Calls visit(name, member, help) for every option; the only list of them. Names are the YAML keys; flags
/// have dashes for underscores.
template <typename Options, typename Visit>
void for_each_option(Options& o, const Visit& visit) {
  visit("data", o.data, "digits, idx:DIR (MNIST's files, plain or gzip'd) or text:FILE (bytes)");
  visit("model", o.model, "mlp, convnet, resnet-tiny or gpt-tiny");
  visit("precision", o.precision, "a mode of `mantissa modes`, or all: every mode in turn");
  visit("loss_scale", o.loss_scale, "of fp16 modes: dynamic, none or a number; auto: the mode's own");
  visit("init_scale", o.init_scale, "of a dynamic loss scale: the first one; auto: 65536");
  visit("growth_factor", o.growth_factor, "of a dynamic loss scale: times this when it grows; auto: 2");
  visit("backoff_factor", o.backoff_factor,
        "of a dynamic loss scale: times this after an overflow; auto: 0.5");
  visit("growth_interval", o.growth_interval,
        "of a dynamic loss scale: steps without overflow until it grows; auto: 2000");
  visit("min_scale", o.min_scale, "of a dynamic loss scale: the least; 0: no floor; auto: 2^-126");
  visit("max_scale", o.max_scale,
        "of a dynamic loss scale: the largest; auto: float32's largest, of Apex's levels 2^24");
  visit("hysteresis_steps", o.hysteresis_steps,
        "of a dynamic loss scale: overflows until it backs off; auto: 1");
  visit("warn_after_skips", o.warn_after_skips,
        "of a loss scale: warn when so many steps in a row are skipped; 0: never; auto: 10");
  visit("keep_batchnorm_fp32", o.keep_batchnorm_fp32,
        "of modes with 16-bit weights: true, false or auto: the mode's own");
  visit("master_weights", o.master_weights,
        "of modes with 16-bit weights: step float32 copies; true, false or auto: the mode's own");
  visit("amp_backend", o.amp_backend, "native, or apex: --amp-level instead of --precision");
  visit("amp_level", o.amp_level, "Apex's O0, O1, O2 or O3");
  visit("float32_matmul_precision", o.float32_matmul_precision,
        "of float32 products: highest, high (TF32 on GPUs) or medium (bf16 too, on CPUs that have it)");
  visit("cpu_kernels", o.cpu_kernels,
        "which kernels compute what is of 16 bits on the CPU, e.g. avx2 or product=libtorch; empty: the "
        "fastest here");
  visit("device", o.device, "auto, cpu, cuda or cuda:N");
  visit("channels_last", o.channels_last,
        "true: lay out images and convolutions' weights with the channels last, as tensor cores want them");
  visit("benchmark", o.benchmark,
        "true: cuDNN times its algorithms for each new shape and takes the fastest");
  visit("max_epochs", o.max_epochs, "passes over the training data; -1: no limit");
  visit("max_steps", o.max_steps, "optimizer steps; -1: no limit");
  visit("max_time", o.max_time, "DD:HH:MM:SS, after which training ends, time before a resume included");
  visit("min_epochs", o.min_epochs, "before which early stopping does not end training");
  visit("min_steps", o.min_steps, "the same in optimizer steps");
  visit("early_stopping", o.early_stopping,
        "end training when this no longer improves: val_loss, val_accuracy or train_loss; empty: train on");
  visit("patience", o.patience, "of early stopping: so many checks in a row without an improvement");
  visit("min_delta", o.min_delta, "of early stopping: an improvement is a change by more than this");
  visit("limit_train_batches", o.limit_train_batches,
        "batches of an epoch: a count (100), or a share of them (0.25)");
  visit("limit_val_batches", o.limit_val_batches, "batches of a validation, the same way; 0: no validation");
  visit("overfit_batches", o.overfit_batches,
        "train and validate on so many batches, the same in every epoch; 0.0: all");
  visit("val_check_interval", o.val_check_interval,
        "validate after so many batches of an epoch, or after this share of them");
  visit("check_val_every_n_epoch", o.check_val_every_n_epoch,
        "validate in every N-th epoch; 0: --val-check-interval counts batches over all epochs");
  visit("num_sanity_val_steps", o.num_sanity_val_steps,
        "validation batches before training, to find at once what is wrong there; -1: all");
  visit("fast_dev_run", o.fast_dev_run, "above 0: so many batches of everything, to see whether it runs");
  visit("batch_size", o.batch_size, "samples a batch");
  visit("num_workers", o.num_workers,
        "threads that read batches ahead, with the same result; 0: the training's own");
  visit("accumulate_grad_batches", o.accumulate_grad_batches,
        "batches whose gradients are added before a step");
  visit("optimizer", o.optimizer, "sgd, adamw, fused-sgd or fused-adamw");
  visit("stochastic_rounding", o.stochastic_rounding,
        "true: a fused optimizer rounds 16-bit weights up or down at random, so that small updates are not "
        "lost");
  visit("lr", o.lr, "learning rate");
  visit("momentum", o.momentum, "sgd's momentum");
  visit("beta1", o.beta1, "adamw's first decay");
  visit("beta2", o.beta2, "adamw's second decay");
  visit("weight_decay", o.weight_decay, "weight decay");
  visit("lr_schedule", o.lr_schedule, "constant or cosine (to a tenth, over the whole run)");
  visit("warmup_steps", o.warmup_steps, "steps over which the learning rate rises to --lr");
  visit("gradient_clip_val", o.gradient_clip_val, "0: no clipping");
  visit("gradient_clip_algorithm", o.gradient_clip_algorithm, "norm or value");
  visit("ema_decay", o.ema_decay,
        "of the weights' moving average, which validation sees and the run saves, e.g. 0.999; 0: none");
  visit("transactional", o.transactional, "true: a skipped step leaves batch norm's statistics as they were");
  visit("trace_nonfinite", o.trace_nonfinite,
        "true: on a skipped step or a nan loss, find the operation it came from");
  visit("detect_anomaly", o.detect_anomaly,
        "true: end on a backward pass that computes nan, and name its operation; slow");
  visit("val_fraction", o.val_fraction,
        "share held out for validation where the data has no split of its own");
  visit("classes", o.classes, "of idx: labels; 0: what the labels show, at least 10");
  visit("seed", o.seed, "of the weights, the shuffling and the split: 0 to 2^64 - 1");
  visit("threads", o.threads, "CPU threads; 0: one a core");
  visit("weights", o.weights, "start from this safetensors file");
  visit("logger", o.logger, "csv, tensorboard, jsonl: some of them, with commas between; or none");
  visit("log_every_n_steps", o.log_every_n_steps,
        "a row of metrics after so many optimizer steps; 0: only by epochs");
  visit("callbacks", o.callbacks,
        "LearningRateMonitor, PrecisionMonitor, DeviceStatsMonitor: some of them, with commas between; or "
        "none");
  visit("enable_checkpointing", o.enable_checkpointing,
        "checkpoints after each epoch and at the end, from which `mantissa resume` goes on");
  visit("every_n_train_steps", o.every_n_train_steps,
        "checkpoints after so many optimizer steps, too; 0: none");
  visit("save_top_k", o.save_top_k, "so many of the best checkpoints are kept, beside the newest; -1: all");
  visit("monitor", o.monitor, "by which they are the best: val_loss, val_accuracy or train_loss");
  visit("output", o.output, "folder for the run's files; empty: runs/DATA-MODEL-PRECISION-N");
}

/// Apex's name for an option that has another here, accepted too; else "".
constexpr std::string_view apex_name(std::string_view name) {
  return name == "min_scale" ? "min_loss_scale" : name == "max_scale" ? "max_loss_scale" : "";
}

/// The one of `options` (names as in YAML, or as flags) that `name` was most likely meant to be: the nearest,
/// or the one for which other programs have that name, as "learning_rate" for lr; else "".
std::string option_meant(const std::string& name, const std::vector<std::string>& options);

/// Every option that `over` leaves unset, from `under`. But of two ways to say one thing the one that `over`
/// has stands for both, and the other stays unset: max_epochs and max_steps; precision, and amp_backend with
/// amp_level.
FitOptions merge(FitOptions over, const FitOptions& under);

/// The options that a YAML text gives. `file` only names it in errors.
/// Errors: c10::ValueError naming file, line, key and cure for an unknown key or a value that does not parse.
FitOptions parse_yaml(const std::string& text, const std::string& file);
/// Errors: those of parse_yaml(); c10::Error naming the file if it cannot be read.
FitOptions read_yaml(const std::filesystem::path& file);
/// What parse_yaml() reads back as the same options.
std::string to_yaml(const FitOptions& options);

}  // namespace mantissa::cli
