#include <limits>

#include <c10/util/Exception.h>

#include "cli/fit_options.h"
#include "cli/lora_option.h"
#include "cli/option.h"
#include "cli/option_destination.h"
#include "cli/option_parsers.h"
#include "mantissa/core/suggest.h"

namespace mantissa::cli {
namespace {

/// 0 leaves the member unset: the interval then counts batches over all epochs.
void set_check_val_every_n_epoch(FitOptions& o, const Option& /*option*/, const OptionValue& value) {
  const auto epochs = std::get<int64_t>(value);
  o.trainer.check_val_every_n_epoch = epochs == 0 ? std::nullopt : std::optional(epochs);
}

constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kBelowOne = 1 - std::numeric_limits<double>::epsilon() / 2;
constexpr Range kFromZero{0, kLargest, "choose 0 or more"};

/// Returns "a, b or c".
std::string either(std::vector<std::string> names) {
  const std::string last = names.back();
  names.pop_back();
  return join_names(names) + " or " + last;
}

std::vector<std::string> with(std::vector<std::string> names, const std::string& another) {
  names.push_back(another);
  return names;
}

const std::vector<std::string>& auto_or_truth() {
  static const std::vector<std::string> words{"auto", "true", "false"};
  return words;
}

const std::vector<std::string>& metrics() {
  static const std::vector<std::string> words{"val_loss", "val_accuracy", "train_loss"};
  return words;
}

// The defaults suit the image models on small images in every mode. Plain SGD updates fp16 weights, whereas
// Adam's epsilon and second moments fall below fp16's smallest number. The defaults for text suit byte-level
// language modelling: 1,500 steps of 16 x 128 bytes of tiny Shakespeare end near 1.67 nats per byte.

std::vector<Option> data_options() {
  constexpr auto kGroup = Group::kData;
  return {
      {.name = "data",
       .group = kGroup,
       .to = to(&FitOptions::data),
       .default_value = "digits",
       .help = "digits, idx:DIR (MNIST's files, plain or gzip'd) or text:FILE (bytes)",
       .in_trained = true,
       .known_as = {"dataset"}},
      {.name = "val_fraction",
       .group = kGroup,
       .to = to(&FitOptions::val_fraction),
       .default_value = 0.2,
       .help = "share held out for validation where the data has no split of its own",
       .default_for_text = 0.1,
       .range = {{0.001, 0.9, "choose 0.001 to 0.9"}}},
      {.name = "classes",
       .group = kGroup,
       .to = to(&FitOptions::classes),
       .default_value = 0,
       .help = "number of classes of idx: labels; 0: taken from the labels, at least 10",
       .range = {{0, 256, "choose 1 to 256, or 0"}}},
      {.name = "batch_size",
       .group = kGroup,
       .to = to(&DataLoaderOptions::batch_size),
       .default_value = 32,
       .help = "samples per batch",
       .default_for_text = 16,
       .range = {{1, 1e9, "choose at least 1, at most 1e9"}}},
      {.name = "num_workers",
       .group = kGroup,
       .to = to(&DataLoaderOptions::num_workers),
       .default_value = 0,
       .help = "threads that read batches ahead, with the same result; 0: the training's own",
       .range = {{0, 1024, "choose 0 (none) to 1024"}},
       .known_as = {"workers"}},
      {.name = "seed",
       .group = kGroup,
       .to = to(&FitOptions::seed),
       .default_value = uint64_t{1},
       .help = "seed of the split, the shuffling and the weights: 0 to 2^64 - 1",
       .known_as = {"random_seed", "seed_everything"}},
  };
}

std::vector<Option> model_options() {
  constexpr auto kGroup = Group::kModel;
  const std::vector<std::string> names = registered_names(Registry::kModels);
  return {
      {.name = "model",
       .group = kGroup,
       .to = to(&FitOptions::model),
       .default_value = "convnet",
       .help = either(names),
       .default_for_text = "gpt-tiny",
       .choices = names,
       .known_as = {"network", "arch"}},
      {.name = "weights",
       .group = kGroup,
       .to = to(&FitOptions::weights),
       .default_value = "",
       .help = "start from this safetensors file",
       .names_a_file = true,
       .in_trained = true},
      {.name = "lora",
       .group = kGroup,
       .to = to(&FitOptions::lora, parse_lora),
       .default_value = "",
       .help = "train adapters and freeze the model, for example r=16,alpha=32,targets=qkv+projection; also "
               "dropout=0.05, exclude=head, rslora and dora; empty: train the model",
       .known_as = {"peft", "lora_config"}},
      {.name = "adapter",
       .group = kGroup,
       .to = to(&FitOptions::adapter),
       .default_value = "",
       .help = "continue to train the adapter of this folder, which has PEFT's two files",
       .names_a_file = true,
       .known_as = {"lora_path", "adapter_name_or_path", "peft_model"}},
      {.name = "device",
       .group = kGroup,
       .to = to(&TrainerOptions::device),
       .default_value = "auto",
       .help = "auto, cpu, cuda or cuda:N",
       .in_resume = true,
       .in_trained = true,
       .known_as = {"accelerator", "gpus"}},
      {.name = "threads",
       .group = kGroup,
       .to = to(&FitOptions::threads),
       .default_value = 0,
       .help = "CPU threads; 0: one per core",
       .in_resume = true,
       .in_trained = true},
      {.name = "channels_last",
       .group = kGroup,
       .to = to(&TrainerOptions::channels_last),
       .default_value = false,
       .help = "lay out images and convolutions' weights with the channels last, for tensor cores",
       .in_resume = true,
       .in_trained = true},
      {.name = "benchmark",
       .group = kGroup,
       .to = to(&TrainerOptions::benchmark),
       .default_value = false,
       .help = "cuDNN times its algorithms for each new shape and takes the fastest",
       .in_resume = true,
       .in_trained = true},
  };
}

std::vector<Option> precision_options() {
  constexpr auto kGroup = Group::kPrecision;
  return {
      {.name = "precision",
       .group = kGroup,
       .to = to(&TrainerOptions::precision),
       .default_value = "bf16-mixed",
       .help = "a mode of `mantissa modes`, or all: every mode in turn",
       .choices = with(registered_names(Registry::kModes), "all"),
       .in_resume = true,
       .in_trained = true,
       .help_elsewhere = "a mode of `mantissa modes`",
       .known_as = {"dtype", "amp"}},
      {.name = "loss_scale",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::loss_scale),
       .default_value = "auto",
       .help = "loss scale of fp16 modes: dynamic, none or a number; auto: the mode's own"},
      {.name = "init_scale",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::init_scale),
       .default_value = "auto",
       .help = "dynamic loss scale: initial value; auto: 65536"},
      {.name = "growth_factor",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::growth_factor),
       .default_value = "auto",
       .help = "dynamic loss scale: growth factor; auto: 2"},
      {.name = "backoff_factor",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::backoff_factor),
       .default_value = "auto",
       .help = "dynamic loss scale: backoff factor, after an overflow; auto: 0.5"},
      {.name = "growth_interval",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::growth_interval),
       .default_value = "auto",
       .help = "dynamic loss scale: growth interval, in steps without overflow; auto: 2000"},
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
       .help = "dynamic loss scale: hysteresis, in overflows until it backs off; auto: 1"},
      {.name = "warn_after_skips",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::warn_after_skips),
       .default_value = "auto",
       .help = "warn after this many skipped steps in a row; 0: never; auto: 10"},
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
       .known_as = {"compute_dtype", "bnb_4bit_compute_dtype"}},
      {.name = "ignore_modules",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::ignore_modules),
       .default_value = "auto",
       .help = "quantized modes: leave layers whose names begin so as they are, NAME,NAME; auto: none",
       .known_as = {"llm_int8_skip_modules"}},
      {.name = "blocksize",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::blocksize),
       .default_value = "auto",
       .help = "4-bit modes: values per scale, a power of two from 32 to 4096; auto: 64",
       .known_as = {"block_size"}},
      {.name = "llm_int8_threshold",
       .group = kGroup,
       .to = to_mode(&PrecisionOptions::llm_int8_threshold),
       .default_value = "auto",
       .help = "int8 and int8-training: columns of inputs from this magnitude on are computed in float32; "
               "0: none; auto: 6"},
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
       .help = "which kernels compute in 16 bits on the CPU, e.g. avx2 or product=libtorch; empty: the "
               "fastest here",
       .in_resume = true,
       .in_trained = true},
      {.name = "amp_backend",
       .group = kGroup,
       .to = to(&TrainerOptions::amp_backend),
       .default_value = "native",
       .help = "native, or apex: --amp-level instead of --precision",
       .choices = {"native", "apex"}},
      {.name = "amp_level",
       .group = kGroup,
       .to = to(&TrainerOptions::amp_level),
       .default_value = "",
       .help = "Apex's O0, O1, O2 or O3",
       .choices = registered_names(Registry::kApexLevels),
       .may_be_empty = true},
  };
}

std::vector<Option> optimizer_options() {
  constexpr auto kGroup = Group::kOptimizer;
  const std::vector<std::string> names = registered_names(Registry::kOptimizers);
  return {
      {.name = "optimizer",
       .group = kGroup,
       .to = to(&FitOptions::optimizer),
       .default_value = "sgd",
       .help = either(names),
       .default_for_text = "adamw",
       .choices = names},
      {.name = "lr",
       .group = kGroup,
       .to = to(&OptimizerSettings::lr),
       .default_value = 0.05,
       .help = "learning rate",
       .default_for_text = 1e-3,
       .range = {{0, 1e6, "choose 0 to 1e6"}},
       .known_as = {"learning_rate"}},
      {.name = "momentum",
       .group = kGroup,
       .to = to(&OptimizerSettings::momentum),
       .default_value = 0.9,
       .help = "momentum of SGD; sgd8bit has 0.9 by default, and muon and muon8bit 0.95",
       .default_for_text = 0.0,
       .range = {{0, 1, "choose 0 to 1"}}},
      {.name = "beta1",
       .group = kGroup,
       .to = to(&OptimizerSettings::beta1),
       .default_value = 0.9,
       .help = "Adam, AdamW, Lion and the AdamW of muon: decay of the mean gradient",
       .range = {{0, kBelowOne, "choose 0 or more, below 1"}}},
      {.name = "beta2",
       .group = kGroup,
       .to = to(&OptimizerSettings::beta2),
       .default_value = 0.95,
       .help = "Adam, AdamW and the AdamW of muon: decay of the mean squared gradient",
       .range = {{0, kBelowOne, "choose 0 or more, below 1"}}},
      {.name = "alpha",
       .group = kGroup,
       .to = to(&OptimizerSettings::alpha),
       .default_value = 0.99,
       .help = "rmsprop8bit: decay of the mean squared gradient",
       .range = {{1e-6, kBelowOne, "choose a number above 0, below 1"}}},
      {.name = "min_8bit_size",
       .group = kGroup,
       .to = to(&OptimizerSettings::min_8bit_size),
       .default_value = 4096,
       .help = "8-bit and 4-bit optimizers: smaller tensors have 32-bit states",
       .range = {{0, 1e15, "choose 0 or more"}}},
      {.name = "weight_decay",
       .group = kGroup,
       .to = to(&OptimizerSettings::weight_decay),
       .default_value = 5e-4,
       .help = "weight decay",
       .default_for_text = 0.1,
       .range = {{0, 1e6, "choose 0 to 1e6"}},
       .known_as = {"decay"}},
      {.name = "stochastic_rounding",
       .group = kGroup,
       .to = to(&OptimizerSettings::stochastic_rounding),
       .default_value = false,
       .help = "a fused, 8-bit or 4-bit optimizer, or muon, rounds 16-bit weights up or down at random, so "
               "that small updates "
               "are not "
               "lost"},
      {.name = "accumulate_grad_batches",
       .group = kGroup,
       .to = to(&TrainerOptions::accumulate_grad_batches),
       .default_value = 1,
       .help = "batches whose gradients are added before a step",
       .range = {{1, kLargest, "choose at least 1"}},
       .known_as = {"gradient_accumulation_steps"}},
      {.name = "gradient_clip_val",
       .group = kGroup,
       .to = to(&TrainerOptions::gradient_clip_val),
       .default_value = 0.0,
       .help = "gradient clipping limit; 0: no clipping",
       .default_for_text = 1.0,
       .range = {{0, kLargest, "choose 0 (no clipping) or more"}},
       .known_as = {"grad_clip", "max_grad_norm"}},
      {.name = "gradient_clip_algorithm",
       .group = kGroup,
       .to = to(&TrainerOptions::gradient_clip_algorithm),
       .default_value = "norm",
       .help = "norm or value",
       .choices = {"norm", "value"}},
      {.name = "ema_decay",
       .group = kGroup,
       .to = to(&EmaOptions::decay),
       .default_value = 0.0,
       .help = "decay of the moving average of the weights (EMA), used for validation and saved; 0: none",
       .range = {{0, kBelowOne, "choose 0 (no average) or a number below 1"}},
       .known_as = {"ema"}},
  };
}

std::vector<Option> schedule_options() {
  constexpr auto kGroup = Group::kSchedule;
  return {
      {.name = "lr_schedule",
       .group = kGroup,
       .to = to(&FitOptions::lr_schedule),
       .default_value = "cosine",
       .help = "constant or cosine (to a tenth, over the whole run)",
       .choices = {"constant", "cosine"},
       .known_as = {"scheduler"}},
      {.name = "warmup_steps",
       .group = kGroup,
       .to = to(&WarmupCosineOptions::warmup_steps),
       .default_value = 20,
       .help = "steps over which the learning rate rises to --lr",
       .default_for_text = 100,
       .range = {{0, 1e15, "choose 0 to 1e15"}},
       .known_as = {"warmup"}},
  };
}

std::vector<Option> limit_options() {
  constexpr auto kGroup = Group::kLimits;
  constexpr Range kOrNoLimit{-1, kLargest, "choose 0 or more, or -1 for no limit"};
  return {
      {.name = "max_epochs",
       .group = kGroup,
       .to = to(&TrainerOptions::max_epochs),
       .default_value = 15,
       .help = "passes over the training data; -1: no limit",
       .default_for_text = -1,
       .range = kOrNoLimit,
       .in_resume = true,
       .known_as = {"epochs", "num_epochs", "num_train_epochs"}},
      {.name = "max_steps",
       .group = kGroup,
       .to = to(&TrainerOptions::max_steps),
       .default_value = -1,
       .help = "optimizer steps; -1: no limit",
       .default_for_text = 1500,
       .range = kOrNoLimit,
       .in_resume = true,
       .known_as = {"steps", "num_steps"}},
      {.name = "max_time",
       .group = kGroup,
       .to = to(&TrainerOptions::max_time, parse_max_time),
       .default_value = "",
       .help = "DD:HH:MM:SS, after which training ends, time before a resume included",
       .in_resume = true},
      {.name = "min_epochs",
       .group = kGroup,
       .to = to(&TrainerOptions::min_epochs),
       .default_value = 0,
       .help = "minimum number of epochs before early stopping"},
      {.name = "min_steps",
       .group = kGroup,
       .to = to(&TrainerOptions::min_steps),
       .default_value = 0,
       .help = "minimum number of optimizer steps before early stopping"},
      {.name = "early_stopping",
       .group = kGroup,
       .to = to(&EarlyStoppingOptions::monitor),
       .default_value = "",
       .help =
           "end training when this no longer improves: val_loss, val_accuracy or train_loss; empty: never "
           "stop early",
       .choices = metrics(),
       .may_be_empty = true,
       .in_resume = true},
      {.name = "patience",
       .group = kGroup,
       .to = to(&EarlyStoppingOptions::patience),
       .default_value = 3,
       .help = "checks in a row without an improvement before stopping",
       .range = kFromZero,
       .in_resume = true},
      {.name = "min_delta",
       .group = kGroup,
       .to = to(&EarlyStoppingOptions::min_delta),
       .default_value = 0.0,
       .help = "early stopping: minimum improvement",
       .range = kFromZero},
      {.name = "limit_train_batches",
       .group = kGroup,
       .to = to(&TrainerOptions::limit_train_batches, parse_batch_limit),
       .default_value = "1.0",
       .help = "batches of an epoch: a count (100) or a fraction (0.25)"},
      {.name = "limit_val_batches",
       .group = kGroup,
       .to = to(&TrainerOptions::limit_val_batches, parse_batch_limit),
       .default_value = "1.0",
       .help = "batches of a validation: a count or a fraction; 0: no validation"},
      {.name = "overfit_batches",
       .group = kGroup,
       .to = to(&TrainerOptions::overfit_batches, parse_batch_limit),
       .default_value = "0.0",
       .help = "train and validate on this many batches, the same in every epoch; 0.0: all"},
      {.name = "val_check_interval",
       .group = kGroup,
       .to = to(&TrainerOptions::val_check_interval, parse_batch_limit),
       .default_value = "1.0",
       .help = "validate every N batches, or after this fraction of an epoch"},
      {.name = "check_val_every_n_epoch",
       .group = kGroup,
       .to = {kind_of<int64_t>(), &set_check_val_every_n_epoch},
       .default_value = 1,
       .help = "validate in every N-th epoch; 0: --val-check-interval counts batches over all epochs",
       .range = {{0, kLargest, "choose 1 or more, or 0 for --val-check-interval over all epochs"}}},
      {.name = "num_sanity_val_steps",
       .group = kGroup,
       .to = to(&TrainerOptions::num_sanity_val_steps),
       .default_value = 2,
       .help = "validation batches before training, to find at once what is wrong there; -1: all"},
      {.name = "fast_dev_run",
       .group = kGroup,
       .to = to(&TrainerOptions::fast_dev_run),
       .default_value = 0,
       .help = "above 0: run only this many batches of everything"},
  };
}

std::vector<Option> logging_options() {
  constexpr auto kGroup = Group::kLogging;
  return {
      {.name = "logger",
       .group = kGroup,
       .to = to_list(&FitOptions::loggers),
       .default_value = "csv,tensorboard",
       .help = "comma-separated list of csv, tensorboard and jsonl; or none",
       .choices = {"csv", "tensorboard", "jsonl", "none"},
       .is_list = true,
       .in_resume = true},
      {.name = "log_every_n_steps",
       .group = kGroup,
       .to = to(&TrainerOptions::log_every_n_steps),
       .default_value = 50,
       .help = "log metrics every N optimizer steps; 0: only after each epoch",
       .range = kFromZero,
       .in_resume = true},
      {.name = "callbacks",
       .group = kGroup,
       .to = to_list(&FitOptions::callbacks),
       .default_value = "none",
       .help =
           "comma-separated list of LearningRateMonitor, PrecisionMonitor and DeviceStatsMonitor; or none",
       .choices = {"LearningRateMonitor", "PrecisionMonitor", "DeviceStatsMonitor", "none"},
       .is_list = true},
  };
}

std::vector<Option> checkpoint_options() {
  constexpr auto kGroup = Group::kCheckpoints;
  return {
      {.name = "output",
       .group = kGroup,
       .to = to(&FitOptions::output),
       .default_value = "",
       .help = "folder for the run's files; empty: runs/DATA-MODEL-PRECISION-N",
       .names_a_file = true,
       .known_as = {"output_dir", "out", "default_root_dir"}},
      {.name = "enable_checkpointing",
       .group = kGroup,
       .to = to(&FitOptions::enable_checkpointing),
       .default_value = true,
       .help = "save checkpoints after each epoch and at the end, from which `mantissa resume` continues"},
      {.name = "every_n_train_steps",
       .group = kGroup,
       .to = to(&ModelCheckpointOptions::every_n_train_steps),
       .default_value = 0,
       .help = "also save a checkpoint every N optimizer steps; 0: none",
       .range = kFromZero,
       .in_resume = true},
      {.name = "save_top_k",
       .group = kGroup,
       .to = to(&ModelCheckpointOptions::save_top_k),
       .default_value = 1,
       .help = "number of best checkpoints to keep, besides the newest; -1: all",
       .range = {{-1, kLargest, "choose 0 or more, or -1 for all"}},
       .in_resume = true},
      {.name = "monitor",
       .group = kGroup,
       .to = to(&ModelCheckpointOptions::monitor),
       .default_value = "val_loss",
       .help = "metric that selects the best checkpoints: val_loss, val_accuracy or train_loss",
       .choices = metrics()},
  };
}

}  // namespace

const std::vector<Option>& options() {
  static const std::vector<Option> table = [] {
    std::vector<Option> all;
    for (const auto group : {data_options, model_options, precision_options, optimizer_options,
                             schedule_options, limit_options, logging_options, checkpoint_options}) {
      for (Option& option : group()) {
        TORCH_INTERNAL_ASSERT(option.default_value.index() == option.to.kind &&
                                  default_of(option, true).index() == option.to.kind,
                              "the default of ", option.name, " is of another kind than its member");
        all.push_back(std::move(option));
      }
    }
    return all;
  }();
  return table;
}

}  // namespace mantissa::cli
