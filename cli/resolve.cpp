#include "cli/resolve.h"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "cli/adapters.h"
#include "cli/data/kinds.h"
#include "cli/errors.h"
#include "cli/option.h"
#include "cli/option_parsers.h"
#include "cli/run_data.h"
#include "mantissa/core/suggest.h"
#include "mantissa/kernels/aten/choice.h"
#include "mantissa/models/registry.h"
#include "mantissa/optim/registry.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/callbacks/divergence_monitor.h"

namespace mantissa::cli {
namespace {

/// Returns the default of every option, except `data` for a model that reads text, which has none.
OptionValues defaults(bool text) {
  OptionValues values;
  for (const Option& option : options()) values.set(option.name, default_of(option, text));
  if (text) values.erase("data");
  return values;
}

/// Returns the momentum that an optimizer has by default, unless that is 0. The default of the option is SGD's.
std::optional<double> own_momentum(const std::string& optimizer) {
  for (const OptimizerEntry& entry : optimizers())
    if (entry.name == optimizer && entry.defaults.momentum.value_or(0) > 0) return entry.defaults.momentum;
  return std::nullopt;
}

/// Returns the canonical name of a mode in a list, whose suggestions are those of a single one.
std::string listed_mode(const std::string& flag, const std::string& name) {
  TORCH_CHECK_VALUE(name != "none", flag, ": none is no mode, and cannot be combined with one; leave it out");
  TORCH_CHECK_VALUE(
      name != "all",
      "--precision all trains in every mode, and falls back to none; leave out 'all' or --fallback");
  try {
    return find_mode(name).name;
  } catch (const c10::ValueError& error) {
    C10_THROW_ERROR(ValueError, flag + ": " + error.what_without_backtrace());
  }
}

/// Returns the mode to begin with, and those to fall back to in the form of --fallback. The two options may give them
/// together: "16-mixed,bf16-mixed" is "16-mixed" with the fallback "bf16-mixed".
std::pair<std::string, std::string> modes_in(const std::string& precision, const std::string& fallback) {
  const size_t comma = precision.find(',');
  if (comma == std::string::npos && fallback == "none") return {precision, fallback};
  TORCH_CHECK_VALUE(comma == std::string::npos || fallback == "none", "--precision ", precision,
                    " names the modes to fall back to, and --fallback ", fallback,
                    " does, too; leave one of them out");
  const bool are_listed = comma != std::string::npos;
  const std::string flag = are_listed ? "--precision" : "--fallback";
  std::vector<std::string> names = parse_words(flag, are_listed ? precision : fallback);
  if (!are_listed) names.insert(names.begin(), precision);
  const std::string first = names[0];
  for (std::string& name : names) {
    name = listed_mode(&name == names.data() ? "--precision" : flag, name);
    TORCH_CHECK_VALUE(std::count(names.begin(), names.end(), name) == 1, "--fallback: ", name,
                      " is named twice, and a mode that has diverged would diverge again; name it once");
  }
  return {first, fmt::format("{}", fmt::join(names.begin() + 1, names.end(), ","))};
}

/// Returns the defaults that are others for the data of `given`.
OptionValues defaults_of_data(const OptionValues& given) {
  OptionValues values;
  const auto* const data = given.get_if<std::string>("data");
  const DataKind* const kind = data ? find_data_kind(*data) : nullptr;
  if (!kind) return values;
  for (const auto& [option, value] : kind->defaults) values.set(option, value);
  if (!kind->defaults_of) return values;
  for (const auto& [option, value] : kind->defaults_of(path_of_data(*data))) values.set(option, value);
  return values;
}

/// Returns every option, with the library's names for the values.
OptionValues complete(const OptionValues& given) {
  OptionValues values = merge(merge(given, defaults_of_data(given)), defaults(reads_text(given)));
  const auto text_or_none = [&](const char* option) {
    const auto* const text = values.get_if<std::string>(option);
    return text ? *text : std::string();
  };
  TORCH_CHECK_VALUE(values.has("data"), "--model ", text_or_none("model"),
                    " needs text; give --data text:FILE or tokens:FILE");
  const std::optional<double> momentum = own_momentum(text_or_none("optimizer"));
  if (momentum && !given.has("momentum")) values.set("momentum", *momentum);
  if (const std::string model = text_or_none("model"); is_model_path(model) && !given.has("vocabulary"))
    if (const std::optional<int64_t> own = find_model(model).vocabulary) values.set("vocabulary", *own);
  for (const char* limit : {"max_epochs", "max_steps"})
    if (!values.has(limit)) values.set(limit, -1);
  if (!values.has("fallback")) values.set("fallback", "none");
  const auto [first, fallback] = modes_in(text_or_none("precision"), text_or_none("fallback"));
  std::string mode = naming_flags([&, &precision = first] {
    return mode_of_amp_flags(precision, text_or_none("amp_backend"), text_or_none("amp_level"));
  });
  if (mode != "all") mode = find_mode(mode).name;
  values.set("precision", mode);
  values.set("fallback", fallback);
  values.set("amp_backend", "native"), values.set("amp_level", "");  // the precision expresses it now
  return values;
}

void check_length(const FitOptions& o) {
  const TrainerOptions& t = o.trainer;
  const bool is_endless = t.max_epochs < 0 && t.max_steps < 0;
  TORCH_CHECK_VALUE(!is_endless || t.max_time,
                    "--max-epochs and --max-steps are both -1, so training would never end; set one of them, "
                    "or --max-time");
  TORCH_CHECK_VALUE(!is_endless || o.lr_schedule != "cosine",
                    "--lr-schedule cosine falls over the whole run, whose length --max-time alone does not "
                    "determine; give --max-epochs or --max-steps, or --lr-schedule constant");
}

void check_optimizer(const FitOptions& o) {
  const OptimizerEntry& optimizer = find_optimizer(o.optimizer);
  TORCH_CHECK_VALUE(optimizer.for_momentum_0.empty() || o.optimizer_settings.momentum != 0.0,
                    "--momentum 0 with --optimizer ", optimizer.name,
                    ": without a momentum there is no state to keep in 8 "
                    "bits; choose --optimizer ",
                    optimizer.for_momentum_0, ", or a momentum above 0");
  TORCH_CHECK_VALUE(
      o.optim_32bit_modules.empty() || optimizer.takes("min_8bit_size"),
      "--optim-32bit-modules gives some weights of an 8- or 4-bit optimizer 32-bit states, and all states of "
      "--optimizer ",
      o.optimizer, " have more bits; leave it out, or choose an optimizer such as adamw8bit");
  std::vector<std::string> rounding;
  for (const OptimizerEntry& entry : optimizers())
    if (entry.takes("stochastic_rounding")) rounding.push_back(entry.name);
  TORCH_CHECK_VALUE(!*o.optimizer_settings.stochastic_rounding || optimizer.takes("stochastic_rounding"),
                    "--stochastic-rounding is not an option of --optimizer ", o.optimizer,
                    "; choose --optimizer ", join_names(rounding), ", or leave it out");
  check_optimizer_state(o);
}

/// libtorch computes the update of an fp16 weight with fp16 factors.
void check_fp16_factors(const FitOptions& o) {
  const double largest = info(Format::kFloat16).largest;
  for (const char* factor : {"lr", "weight_decay"}) {
    const double value = *o.values.get_if<double>(factor);
    TORCH_CHECK_VALUE(value <= largest, flag_of(factor), " ", fmt::format("{}", value), " is above ", largest,
                      ", the largest number of fp16, in which ", o.precision(),
                      " updates its weights; choose a smaller value, or 16-mixed");
  }
}

void check_metrics(const FitOptions& o) {
  const bool validates = !o.trainer.limit_val_batches.is_none();
  for (const auto& [flag, metric] :
       {std::pair("--monitor", o.checkpoints.monitor), {"--early-stopping", o.early_stopping.monitor}})
    TORCH_CHECK_VALUE(
        validates || !metric.starts_with("val_"), flag, " ", metric,
        " is measured in validations, of which --limit-val-batches 0 has none; choose train_loss");
  const bool writes_rows = std::any_of(o.callbacks.begin(), o.callbacks.end(),
                                       [](const std::string& name) { return name != "DivergenceMonitor"; });
  TORCH_CHECK_VALUE(!o.loggers.empty() || !writes_rows, "--callbacks ",
                    *o.values.get_if<std::string>("callbacks"),
                    " write to a logger, and --logger is none; leave one of the two out");
}

void check_threads(int64_t threads) {
  const auto cores = static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
  TORCH_CHECK_VALUE(threads >= 0 && threads <= cores, "--threads ", threads, ": this machine has ", cores,
                    " cores; choose 1 to ", cores, ", or 0 for one per core");
}

void check_model_reads_data(const FitOptions& o) {
  const InputKind kind = input_kind_of(o.data);
  std::vector<std::string> fitting;
  for (const ModelEntry& model : models())
    if (model.reads(kind)) fitting.push_back(model.name);
  TORCH_CHECK_VALUE(find_model(o.model).reads(kind), "--model ", o.model, " cannot read --data ", o.data,
                    "; choose from ", join_names(fitting), ", or other data");
}

/// Each mode must be able to train with the other options, before the first one does.
void check_fallback(const FitOptions& o) {
  const DivergenceMonitor checked(o.divergence);
  if (o.fallback.empty()) return;
  TORCH_CHECK_VALUE(
      o.enable_checkpointing, "--fallback ", *o.values.get_if<std::string>("fallback"),
      " continues from a checkpoint, and --no-enable-checkpointing saves none; leave one of the two out");
  falling_back(o);
}

}  // namespace

bool reads_text(const OptionValues& given) {
  if (const auto* const model = given.get_if<std::string>("model")) {
    const std::vector<std::string> names = registered_names(Registry::kModels);
    const bool is_known =
        is_model_path(*model) || std::find(names.begin(), names.end(), *model) != names.end();
    if (!is_known) return false;
    if (const std::optional<InputKind> input = find_model(*model).input) return *input == InputKind::kTokens;
  }
  const auto* const data = given.get_if<std::string>("data");
  const DataKind* const kind = data ? find_data_kind(*data) : nullptr;
  return kind && kind->input == InputKind::kTokens;
}

void check_optimizer_state(const FitOptions& o) {
  const OptimizerEntry& optimizer = find_optimizer(o.optimizer);
  if (o.precision() == "all" || !optimizer.squares_gradients || *o.optimizer_settings.stochastic_rounding)
    return;
  if (has_adapter(o)) return;  // its parameters and their state are float32
  TORCH_CHECK_VALUE(
      o.traits().gradients != Format::kFloat16, "--optimizer ", optimizer.name,
      " cannot keep its state in fp16, as --precision ", o.precision(),
      " without master weights would have it: its epsilon ", *optimizer.defaults.eps,
      " and small squared gradients are 0 there, so that updates become nan or far too large; choose "
      "--optimizer fused-adamw --stochastic-rounding, --master-weights true, --optimizer sgd, or "
      "--precision ",
      o.traits().layer_products == Format::kFloat8E4M3 ? "transformer-engine or fp8-mixed"
                                                       : "16-mixed or bf16-true");
}

namespace {

/// Whether the mode can use the options of `values`.
bool takes_options(const std::string& mode, const OptionValues& values) {
  try {
    make_precision(mode, at::kCPU, fit_options(complete(values)).trainer.precision_options);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

OptionValues options_of_run(const OptionValues& saved, const OptionValues& flags) {
  OptionValues kept = saved;
  const auto* const before = saved.get_if<std::string>("precision");
  const auto* const now = flags.get_if<std::string>("precision");
  if (!before || !now || *now == "all" || canonical_mode(*before) == canonical_mode(*now)) return kept;
  std::vector<std::string> of_the_mode;
  for (const Option& option : options())
    if (option.to.or_auto && kept.has(option.name)) {
      of_the_mode.push_back(option.name);
      kept.set(option.name, "auto");
    }
  // Modes that are alike share options, such as the recipe of those in FP8.
  for (const std::string& option : of_the_mode) {
    OptionValues with = kept;
    with.set(option, *saved.find(option));
    if (takes_options(*now, merge(flags, with))) kept = std::move(with);
  }
  return kept;
}

FitOptions resolve(const OptionValues& given) {
  FitOptions o = fit_options(complete(given));
  // Without validation, the training loss is the only metric to monitor.
  if (o.trainer.limit_val_batches.is_none() && !given.has("monitor")) o = o.with("monitor", "train_loss");
  check_data(o.data);
  check_model_reads_data(o);
  usage([&] { check_cpu_kernel_pins(o.trainer.cpu_kernels); });
  check_length(o);
  check_optimizer(o);
  if (o.precision() != "all") {
    // The options that a mode can use are the same on every device.
    naming_flags([&] { make_precision(o.precision(), at::kCPU, o.trainer.precision_options); });
    if (o.traits().gradients == Format::kFloat16 && !has_adapter(o)) check_fp16_factors(o);
  }
  check_adapter(o);
  check_metrics(o);
  check_threads(o.threads);
  check_fallback(o);
  return o;
}

FitOptions falling_back(const FitOptions& o) {
  OptionValues changes;
  changes.set("precision", o.fallback.front());
  const std::string rest = fmt::format("{}", fmt::join(o.fallback.begin() + 1, o.fallback.end(), ","));
  changes.set("fallback", rest.empty() ? "none" : rest);
  // The last mode is watched, too: a state that is not good must not replace the last good one.
  std::vector<std::string> callbacks = o.callbacks;
  if (std::count(callbacks.begin(), callbacks.end(), "DivergenceMonitor") == 0)
    callbacks.emplace_back("DivergenceMonitor");
  changes.set("callbacks", fmt::format("{}", fmt::join(callbacks, ",")));
  return resolve(merge(changes, options_of_run(o.values, changes)));
}

}  // namespace mantissa::cli
