#include "cli/recipe.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <thread>
#include <type_traits>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "cli/errors.h"
#include "cli/run_length.h"
#include "mantissa/core/parse_number.h"
#include "mantissa/core/suggest.h"
#include "mantissa/data/digits.h"
#include "mantissa/data/idx.h"
#include "mantissa/data/text.h"
#include "mantissa/kernels/choice.h"
#include "mantissa/optim/adamw.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/optim/lr_scheduler.h"
#include "mantissa/optim/sgd.h"
#include "mantissa/precision/registry.h"
#include "mantissa/precision/scaled.h"

namespace mantissa::cli {
namespace {

/// Good for the image models on small images in every mode: plain SGD moves fp16 weights, where Adam's
/// epsilon and second moments fall below fp16's smallest number.
FitOptions image_recipe() {
  FitOptions o;
  o.data = "digits", o.model = "convnet";
  o.max_epochs = 15, o.max_steps = -1, o.batch_size = 32;
  o.optimizer = "sgd", o.lr = 0.05, o.momentum = 0.9, o.weight_decay = 5e-4;
  o.warmup_steps = 20, o.gradient_clip_val = 0.0, o.val_fraction = 0.2;
  return o;
}

/// Byte-level language modelling; 1,500 steps of 16 x 128 bytes of tiny Shakespeare end near 1.67 nats a
/// byte.
FitOptions text_recipe() {
  FitOptions o;
  o.model = "gpt-tiny";
  o.max_epochs = -1, o.max_steps = 1500, o.batch_size = 16;
  o.optimizer = "adamw", o.lr = 1e-3, o.momentum = 0.0, o.weight_decay = 0.1;
  o.warmup_steps = 100, o.gradient_clip_val = 1.0, o.val_fraction = 0.1;
  return o;
}

FitOptions common_recipe() {
  FitOptions o;
  o.precision = "bf16-mixed", o.device = "auto", o.channels_last = o.benchmark = false;
  o.loss_scale = o.init_scale = o.growth_factor = o.backoff_factor = o.growth_interval = o.min_scale =
      o.max_scale = o.hysteresis_steps = o.warn_after_skips = "auto";
  o.keep_batchnorm_fp32 = o.master_weights = "auto";
  o.amp_backend = "native", o.amp_level = "", o.float32_matmul_precision = "highest", o.cpu_kernels = "";
  o.stochastic_rounding = o.transactional = o.trace_nonfinite = false;
  o.accumulate_grad_batches = 1;
  o.beta1 = 0.9, o.beta2 = 0.95, o.ema_decay = 0.0;
  o.lr_schedule = "cosine", o.gradient_clip_algorithm = "norm";
  o.classes = 0, o.seed = 1, o.threads = 0, o.num_workers = 0;
  o.weights = "", o.output = "";
  o.logger = "csv,tensorboard", o.log_every_n_steps = 50;
  o.max_time = "", o.min_epochs = 0, o.min_steps = 0, o.fast_dev_run = 0, o.detect_anomaly = false;
  o.early_stopping = "", o.patience = 3, o.min_delta = 0.0, o.callbacks = "none";
  o.limit_train_batches = o.limit_val_batches = o.val_check_interval = "1.0", o.overfit_batches = "0.0";
  o.check_val_every_n_epoch = 1, o.num_sanity_val_steps = 2;
  o.enable_checkpointing = true, o.every_n_train_steps = 0, o.save_top_k = 1, o.monitor = "val_loss";
  return o;
}

bool is_text(const FitOptions& o) {
  return o.model ? *o.model == "gpt-tiny" : o.data && o.data->starts_with("text:");
}
FitOptions recipe_of(const FitOptions& o) { return is_text(o) ? text_recipe() : image_recipe(); }

constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kBelowOne = 1 - std::numeric_limits<double>::epsilon() / 2;

void check_choice(const char* option, const std::string& value, const std::vector<std::string>& choices) {
  TORCH_CHECK_VALUE(std::find(choices.begin(), choices.end(), value) != choices.end(), option, " '", value,
                    "' is not one", did_you_mean(value, choices), "; choose from ", join_names(choices));
}

template <typename Number>
void check_range(const char* option, Number given, double low, double high, const char* cure) {
  const auto value = static_cast<double>(given);
  TORCH_CHECK_VALUE(value >= low && value <= high, option, " ", fmt::format("{}", given),
                    " is out of range; ", cure);
}

/// "A,B": what stands between the commas; nothing for "none".
std::vector<std::string> words_of(const char* flag, const std::string& text,
                                  const std::vector<std::string>& choices) {
  TORCH_CHECK_VALUE(!text.empty(), flag, " is empty; write none for none");
  if (text == "none") return {};
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    check_choice(flag, word, choices);
    TORCH_CHECK_VALUE(word != "none", flag, " '", text,
                      "': none stands for itself; leave it or the others out");
    TORCH_CHECK_VALUE(std::find(words.begin(), words.end(), word) == words.end(), flag, " '", text,
                      "': ", word, " is there twice; once is enough");
    words.push_back(word);
  }
  return words;
}

/// The number that `text` is; null for "auto".
template <typename Number>
std::optional<Number> number(const char* name, const std::string& text) {
  if (text == "auto") return std::nullopt;
  const ParsedNumber<Number> parsed = parse_number<Number>(text);
  TORCH_CHECK_VALUE(parsed.value, name, " ", parsed.problem, parsed.is_out_of_range ? "" : ", or auto");
  return parsed.value;
}

/// Null for "auto".
std::optional<bool> truth(const std::string& word) {
  return word == "auto" ? std::nullopt : std::optional(word == "true");
}

/// Without float32 copies of them.
bool steps_16_bit_weights(const FitOptions& o) {
  const bool o2 = *o.precision == "O2",
             copies = *o.master_weights == "true" || (o2 && *o.master_weights == "auto");
  return !copies && (o2 || o.precision->ends_with("16-true") || *o.precision == "O3");
}

/// libtorch computes the update of an fp16 weight with factors in fp16.
void check_fp16_factors(const FitOptions& o) {
  if (!steps_16_bit_weights(o) || *o.precision == "bf16-true") return;
  for (const auto& [flag, value] : {std::pair("--lr", *o.lr), {"--weight-decay", *o.weight_decay}})
    TORCH_CHECK_VALUE(value <= 65504, flag, " ", fmt::format("{}", value),
                      " is above 65504, the largest number ", "of fp16, in which ", *o.precision,
                      " steps its weights; choose less, or 16-mixed");
}

bool has_scaler(const FitOptions& o) {
  const auto mode = make_precision(*o.precision, at::Device(at::kCPU), precision_options(o));
  auto* scaled = dynamic_cast<ScaledPrecision*>(mode.get());
  return scaled && scaled->scaler() && scaled->scaler()->is_enabled();
}

/// One of small images; null for a name that is no model.
std::shared_ptr<TensorModule> example_of(const std::string& model) {
  for (const ModelEntry& entry : models())
    if (entry.name == model) return entry.make({.kind = entry.input, .height = 8, .width = 8, .classes = 10});
  return nullptr;
}

bool has_buffers(const std::string& model) {
  const auto example = example_of(model);
  return example && !example->buffers().empty();
}

bool has_convolutions(const std::string& model) {
  const auto example = example_of(model);
  if (!example) return false;
  const auto parameters = example->parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const at::Tensor& p) { return p.dim() == 4; });
}

struct DataSpec {
  std::string kind, path;
};

DataSpec parse_data(const std::string& text) {
  const size_t colon = text.find(':');
  DataSpec spec{text.substr(0, colon), colon == std::string::npos ? "" : text.substr(colon + 1)};
  TORCH_CHECK_VALUE(
      (spec.kind == "digits" && colon == std::string::npos) ||
          ((spec.kind == "idx" || spec.kind == "text") && !spec.path.empty()),
      "--data '", text, "' names no data",
      spec.kind == "idx" || spec.kind == "text" ? "" : did_you_mean(spec.kind, {"digits", "idx", "text"}),
      "; write digits, idx:DIR or text:FILE");
  return spec;
}

/// `val` is null where the data has no part of its own for it.
Data load_images(const DataSpec& spec, const FitOptions& o) {
  const IdxDataset loaded = spec.kind == "digits" ? IdxDataset{load_digits(), nullptr, 10}
                                                  : load_idx_dataset(spec.path, *o.classes);
  const at::Tensor image = loaded.train->data();
  return {spec.kind,
          loaded.train,
          loaded.val,
          {.kind = InputKind::kImages,
           .channels = image.size(1),
           .height = image.size(2),
           .width = image.size(3),
           .classes = loaded.classes}};
}

}  // namespace

std::vector<std::string> choices_of(const std::string& option) {
  std::vector<std::string> words;
  if (option == "model")
    for (const ModelEntry& model : models()) words.push_back(model.name);
  if (option == "precision" || option == "amp_level")
    for (const Mode& mode : modes())
      if (option == "precision" || mode.name.starts_with("O")) words.push_back(mode.name);
  if (option == "precision") words.emplace_back("all");
  const std::vector<std::string> auto_or_truth{"auto", "true", "false"},
      metrics{"val_loss", "val_accuracy", "train_loss"};
  const std::map<std::string, std::vector<std::string>> fixed{
      {"optimizer", {"sgd", "adamw", "fused-sgd", "fused-adamw"}},
      {"lr_schedule", {"constant", "cosine"}},
      {"gradient_clip_algorithm", {"norm", "value"}},
      {"keep_batchnorm_fp32", auto_or_truth},
      {"master_weights", auto_or_truth},
      {"amp_backend", {"native", "apex"}},
      {"float32_matmul_precision", {"highest", "high", "medium"}},
      {"logger", {"csv", "tensorboard", "jsonl", "none"}},
      {"callbacks", {"LearningRateMonitor", "PrecisionMonitor", "DeviceStatsMonitor", "none"}},
      {"monitor", metrics},
      {"early_stopping", metrics},
  };
  if (const auto found = fixed.find(option); found != fixed.end()) words = found->second;
  const FitOptions types;
  for_each_option(types, [&](const char* name, const auto& member, const char*) {
    if constexpr (std::is_same_v<decltype(member), const std::optional<bool>&>)
      if (name == option) words = {"true", "false"};
  });
  return words;
}

FitOptions resolve(const FitOptions& given) {
  FitOptions o = merge(given, merge(recipe_of(given), common_recipe()));
  TORCH_CHECK_VALUE(o.data, "--model ", *o.model, " needs text; give --data text:FILE");
  if (!o.max_epochs) o.max_epochs = -1;
  if (!o.max_steps) o.max_steps = -1;
  o.precision =
      mode_of_amp_flags(o.precision.value_or(""), o.amp_backend.value_or("native"), o.amp_level.value_or(""));
  o.amp_backend = "native", o.amp_level = "";  // said by the precision now
  if (*o.precision != "all") o.precision = find_mode(*o.precision).name;

  const DataSpec spec = parse_data(*o.data);
  check_choice("--optimizer", *o.optimizer, choices_of("optimizer"));
  check_choice("--keep-batchnorm-fp32", *o.keep_batchnorm_fp32, choices_of("keep_batchnorm_fp32"));
  check_choice("--master-weights", *o.master_weights, choices_of("master_weights"));
  check_choice("--float32-matmul-precision", *o.float32_matmul_precision,
               choices_of("float32_matmul_precision"));
  usage([&] { check_cpu_kernel_pins(*o.cpu_kernels); });
  check_choice("--lr-schedule", *o.lr_schedule, choices_of("lr_schedule"));
  check_choice("--gradient-clip-algorithm", *o.gradient_clip_algorithm,
               choices_of("gradient_clip_algorithm"));
  check_range("--batch-size", *o.batch_size, 1, 1e9, "choose at least 1, at most 1e9");
  check_range("--num-workers", *o.num_workers, 0, 1024, "choose 0 (none) to 1024");
  check_range("--lr", *o.lr, 0, 1e6, "choose 0 to 1e6");
  check_range("--momentum", *o.momentum, 0, 1, "choose 0 to 1");
  check_range("--weight-decay", *o.weight_decay, 0, 1e6, "choose 0 to 1e6");
  check_range("--warmup-steps", *o.warmup_steps, 0, 1e15, "choose 0 to 1e15");
  check_range("--beta1", *o.beta1, 0, kBelowOne, "choose 0 or more, below 1");
  check_range("--beta2", *o.beta2, 0, kBelowOne, "choose 0 or more, below 1");
  check_range("--accumulate-grad-batches", *o.accumulate_grad_batches, 1, kLargest, "choose at least 1");
  check_range("--ema-decay", *o.ema_decay, 0, kBelowOne, "choose 0 (no average) or a number below 1");
  check_range("--gradient-clip-val", *o.gradient_clip_val, 0, kLargest, "choose 0 (no clipping) or more");
  check_range("--max-epochs", *o.max_epochs, -1, kLargest, "choose 0 or more, or -1 for no limit");
  check_range("--max-steps", *o.max_steps, -1, kLargest, "choose 0 or more, or -1 for no limit");
  const bool is_endless = *o.max_epochs < 0 && *o.max_steps < 0;
  TORCH_CHECK_VALUE(!is_endless || !o.max_time->empty(),
                    "--max-epochs and --max-steps are both -1, so training would never end; set one of them, "
                    "or --max-time");
  TORCH_CHECK_VALUE(!is_endless || *o.lr_schedule != "cosine",
                    "--lr-schedule cosine falls over the whole run, whose length --max-time alone does not "
                    "tell; give --max-epochs or --max-steps, or --lr-schedule constant");
  TORCH_CHECK_VALUE(!*o.stochastic_rounding || o.optimizer->starts_with("fused-"),
                    "--stochastic-rounding is the fused optimizers' own; choose --optimizer fused-",
                    *o.optimizer, ", or leave it out");
  TORCH_CHECK_VALUE(!adamw_steps_fp16(o), kAdamWIn16True);
  check_fp16_factors(o);
  const PrecisionOptions told = precision_options(o);
  // Which options a mode can use is the same on every device.
  if (*o.precision != "all") make_precision(*o.precision, at::Device(at::kCPU), told);
  const bool validates = !run_length(o).limit_val_batches.is_none();
  if (!validates && !given.monitor) o.monitor = "train_loss";
  for (const auto& [flag, metric] :
       {std::pair("--monitor", *o.monitor), {"--early-stopping", *o.early_stopping}})
    TORCH_CHECK_VALUE(
        validates || !metric.starts_with("val_"), flag, " ", metric,
        " is measured in validations, of which --limit-val-batches 0 has none; choose train_loss");
  const std::vector<std::string> loggers = logger_words(o), callbacks = callback_words(o);
  TORCH_CHECK_VALUE(!loggers.empty() || callbacks.empty(), "--callbacks ", *o.callbacks,
                    " write to a logger, and --logger is none; leave one of the two out");
  check_range("--log-every-n-steps", *o.log_every_n_steps, 0, kLargest, "choose 0 or more");
  check_range("--every-n-train-steps", *o.every_n_train_steps, 0, kLargest, "choose 0 or more");
  check_range("--save-top-k", *o.save_top_k, -1, kLargest, "choose 0 or more, or -1 for all");
  check_choice("--monitor", *o.monitor, choices_of("monitor"));
  if (!o.early_stopping->empty())
    check_choice("--early-stopping", *o.early_stopping, choices_of("early_stopping"));
  check_range("--patience", *o.patience, 0, kLargest, "choose 0 or more");
  check_range("--min-delta", *o.min_delta, 0, kLargest, "choose 0 or more");
  check_range("--classes", *o.classes, 0, 256, "choose 1 to 256, or 0");
  check_range("--val-fraction", *o.val_fraction, 0.001, 0.9, "choose 0.001 to 0.9");
  const auto cores = static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  TORCH_CHECK_VALUE(*o.threads >= 0 && *o.threads <= cores, "--threads ", *o.threads, ": this machine has ",
                    cores, " cores; choose 1 to ", cores, ", or 0 for one a core");
  std::vector<std::string> fitting;
  for (const ModelEntry& model : models()) {
    if ((model.input == InputKind::kTokens) == (spec.kind == "text")) fitting.push_back(model.name);
  }
  check_choice("--model", *o.model, choices_of("model"));
  TORCH_CHECK_VALUE(std::find(fitting.begin(), fitting.end(), *o.model) != fitting.end(), "--model ",
                    *o.model, " cannot read --data ", *o.data, "; choose from ", join_names(fitting),
                    ", or other data");
  return o;
}

std::vector<std::string> logger_words(const FitOptions& o) {
  return words_of("--logger", *o.logger, choices_of("logger"));
}

std::vector<std::string> callback_words(const FitOptions& o) {
  return words_of("--callbacks", *o.callbacks, choices_of("callbacks"));
}

bool adamw_steps_fp16(const FitOptions& o) {
  return steps_16_bit_weights(o) && *o.precision != "bf16-true" && o.optimizer->ends_with("adamw") &&
         !*o.stochastic_rounding;
}

PrecisionOptions precision_options(const FitOptions& o) {
  return {.loss_scale = *o.loss_scale == "auto" ? std::nullopt : o.loss_scale,
          .keep_batchnorm_fp32 = truth(*o.keep_batchnorm_fp32),
          .master_weights = truth(*o.master_weights),
          .init_scale = number<double>("init_scale", *o.init_scale),
          .growth_factor = number<double>("growth_factor", *o.growth_factor),
          .backoff_factor = number<double>("backoff_factor", *o.backoff_factor),
          .min_scale = number<double>("min_scale", *o.min_scale),
          .max_scale = number<double>("max_scale", *o.max_scale),
          .growth_interval = number<int64_t>("growth_interval", *o.growth_interval),
          .hysteresis_steps = number<int64_t>("hysteresis_steps", *o.hysteresis_steps),
          .warn_after_skips = number<int64_t>("warn_after_skips", *o.warn_after_skips)};
}

void warn_without_effect(const FitOptions& given, const FitOptions& o) {
  const auto warn = [](bool given_in_vain, const char* flag, const std::string& because) {
    if (given_in_vain) {
      TORCH_WARN(flag, " has no effect with ", because, "; leave it out");
    }
  };
  const std::string optimizer = "--optimizer " + *o.optimizer;
  warn(given.momentum && !o.optimizer->ends_with("sgd"), "--momentum", optimizer);
  warn(given.beta1 && !o.optimizer->ends_with("adamw"), "--beta1", optimizer);
  warn(given.beta2 && !o.optimizer->ends_with("adamw"), "--beta2", optimizer);
  warn(given.warmup_steps && *o.lr_schedule == "constant", "--warmup-steps", "--lr-schedule constant");
  warn(given.gradient_clip_algorithm && *o.gradient_clip_val == 0, "--gradient-clip-algorithm",
       "--gradient-clip-val 0");
  for (const auto& [given_in_vain, flag] :
       {std::pair(given.every_n_train_steps && *o.every_n_train_steps > 0, "--every-n-train-steps"),
        {given.save_top_k.has_value(), "--save-top-k"},
        {given.monitor.has_value(), "--monitor"}})
    warn(given_in_vain && !*o.enable_checkpointing, flag, "--enable-checkpointing false");
  for (const auto& [is_given, flag] :
       {std::pair(given.patience.has_value(), "--patience"), {given.min_delta.has_value(), "--min-delta"}})
    warn(is_given && o.early_stopping->empty(), flag, "no --early-stopping");
  if (*o.precision != "all") {
    const std::string precision = "--precision " + *o.precision;
    const bool scales = has_scaler(o);
    warn(*o.transactional && given.transactional && !scales, "--transactional",
         precision + ", which skips no step without a loss scale");
    warn(*o.transactional && given.transactional && scales && !has_buffers(*o.model), "--transactional",
         "--model " + *o.model + ", which has no batch norm");
    warn(*o.stochastic_rounding && given.stochastic_rounding && !steps_16_bit_weights(o),
         "--stochastic-rounding", precision + ", whose optimizer steps no 16-bit weights");
    warn(given.float32_matmul_precision && *o.float32_matmul_precision != "highest" &&
             find_mode(*o.precision).compute_dtype != at::kFloat,
         "--float32-matmul-precision", precision + ", whose products are not float32");
  }
  const bool lays_out = given.channels_last && *o.channels_last, measures = given.benchmark && *o.benchmark;
  if (lays_out || measures) {
    const std::string no_convolutions = "--model " + *o.model + ", which has no convolutions";
    const bool convolves = has_convolutions(*o.model), on_cpu = *o.device == "cpu";
    warn(lays_out && !convolves, "--channels-last", no_convolutions);
    warn(measures && (on_cpu || !convolves), "--benchmark",
         on_cpu ? "--device cpu, which has no cuDNN" : no_convolutions);
  }
  warn(given.classes && !o.data->starts_with("idx:"), "--classes", "--data " + *o.data);
}

Data load_data(const FitOptions& o) {
  const DataSpec spec = parse_data(*o.data);
  const uint64_t seed = *o.seed;
  if (spec.kind == "text") {
    const int64_t context = ModelInput{}.context;
    const at::Tensor bytes = load_text(spec.path);
    const int64_t size = bytes.size(0), needed = context + 1;
    const int64_t held = std::llround(static_cast<double>(size) * *o.val_fraction);
    TORCH_CHECK_VALUE(std::min(held, size - held) >= needed, "text file '", spec.path, "': --val-fraction ",
                      *o.val_fraction, " splits its ", size, " bytes into ", size - held, " to train on and ",
                      held, " to validate, but each needs ", needed,
                      "; give a longer file or another --val-fraction");
    const auto [train, held_out] = split_text(bytes, *o.val_fraction);
    return {"text",
            std::make_shared<TextDataset>(train, context),
            std::make_shared<TextDataset>(held_out, context, /*stride=*/context),
            {.kind = InputKind::kTokens}};
  }
  Data data = load_images(spec, o);
  if (!data.val) std::tie(data.train, data.val) = random_split(data.train, *o.val_fraction, seed);
  return data;
}

Data load_all_data(const FitOptions& o) {
  const DataSpec spec = parse_data(*o.data);
  if (spec.kind == "text") {
    const int64_t context = ModelInput{}.context;
    const at::Tensor bytes = load_text(spec.path);
    TORCH_CHECK_VALUE(bytes.size(0) > context, "text file '", spec.path, "' has ", bytes.size(0),
                      " bytes, but a window needs ", context + 1, "; give a longer file");
    return {"text",
            nullptr,
            std::make_shared<TextDataset>(bytes, context, /*stride=*/context),
            {.kind = InputKind::kTokens}};
  }
  Data data = load_images(spec, o);
  if (!data.val) data.val = data.train;
  return data;
}

std::unique_ptr<Loader> train_loader(const FitOptions& o, const Data& data) {
  DataLoaderOptions options;
  options.batch_size = *o.batch_size;
  options.shuffle = true;
  options.seed = *o.seed;
  options.num_workers = *o.num_workers;
  if (data.input.kind == InputKind::kTokens) {
    // Windows overlap, so an epoch is as many of them as cover the text once, each drawn anywhere.
    options.replacement = true;
    options.num_samples = std::max<int64_t>(1, data.train->size() / ModelInput{}.context);
  }
  return std::make_unique<DataLoader>(data.train, options);
}

std::unique_ptr<Loader> val_loader(const FitOptions& o, const Data& data) {
  DataLoaderOptions options;
  options.num_workers = *o.num_workers;
  options.batch_size = data.input.kind == InputKind::kTokens
                           ? 32
                           : 256;  // no gradients: larger than a training batch, and always the same
  return std::make_unique<DataLoader>(data.val, options);
}

OptimizerConfig make_optimizer(const FitOptions& o, torch::nn::Module& module, int64_t steps) {
  OptimizerConfig config;
  const auto adamw = AdamWOptions(*o.lr).betas({*o.beta1, *o.beta2}).weight_decay(*o.weight_decay);
  const auto sgd = SGDOptions(*o.lr).momentum(*o.momentum).weight_decay(*o.weight_decay);
  const FusedOptions fused{.stochastic_rounding = *o.stochastic_rounding, .seed = *o.seed};
  if (*o.optimizer == "adamw") config.optimizer = std::make_shared<AdamW>(module.parameters(), adamw);
  if (*o.optimizer == "sgd") config.optimizer = std::make_shared<SGD>(module.parameters(), sgd);
  if (*o.optimizer == "fused-adamw")
    config.optimizer = std::make_shared<FusedAdamW>(module.parameters(), adamw, fused);
  if (*o.optimizer == "fused-sgd")
    config.optimizer = std::make_shared<FusedSGD>(module.parameters(), sgd, fused);
  if (*o.lr_schedule == "cosine") {
    // A run shorter than its warm-up still ends it: half of the steps rise, half fall.
    const int64_t warmup = std::min(*o.warmup_steps, steps / 2);
    if (warmup < *o.warmup_steps && o.warmup_steps != recipe_of(o).warmup_steps) {
      TORCH_WARN_ONCE("--warmup-steps ", *o.warmup_steps, " is more than half of the run's ", steps,
                      " steps, so that the learning rate rises over ", warmup,
                      "; choose fewer, or train longer");
    }
    config.scheduler = std::make_shared<WarmupCosineLR>(
        *config.optimizer,
        WarmupCosineOptions{.warmup_steps = warmup, .total_steps = steps, .final_factor = 0.1});
    config.interval = OptimizerConfig::Interval::kStep;
  }
  return config;
}

}  // namespace mantissa::cli
