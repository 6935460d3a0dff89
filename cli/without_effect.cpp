#include "cli/without_effect.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "cli/adapters.h"
#include "cli/data/kinds.h"
#include "cli/option.h"
#include "mantissa/core/formats.h"
#include "mantissa/models/registry.h"
#include "mantissa/precision/empty_init.h"
#include "mantissa/precision/registry.h"

namespace mantissa::cli {
namespace {

/// Makes a model for small images, without values; null for other models.
std::shared_ptr<TensorModule> example_of(const std::string& model) {
  const EmptyInit no_values;
  for (const auto* const table : {&models(), &public_models()})
    for (const ModelEntry& entry : *table)
      if (entry.name == model && entry.input == InputKind::kImages)
        return entry.make({.kind = InputKind::kImages, .height = 32, .width = 32, .classes = 10});
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

/// Returns the options that not all kinds of data use.
std::set<std::string> options_of_some_data() {
  std::set<std::string> options;
  for (const DataKind& kind : data_kinds()) options.insert(kind.options.begin(), kind.options.end());
  return options;
}

class Warnings {
 public:
  Warnings(const OptionValues& given, const FitOptions& resolved) : given_(given), o_(resolved) {}

  void of_the_optimizer() const {
    const OptimizerEntry& optimizer = find_optimizer(o_.optimizer);
    for_each_setting([&](const char* setting, auto) {
      // --seed applies to the whole run, and some settings are not options.
      if (std::string_view(setting) == "seed" || !find_option(setting)) return;
      if (is_given(setting) && !optimizer.takes(setting)) warn(setting, "--optimizer " + o_.optimizer);
    });
    if (is_given("warmup_steps") && o_.lr_schedule == "constant")
      warn("warmup_steps", "--lr-schedule constant");
    if (given_.has("gradient_clip_algorithm") && o_.trainer.gradient_clip_val == 0)
      warn("gradient_clip_algorithm", "--gradient-clip-val 0");
  }

  void of_checkpoints_and_stopping() const {
    const bool saves_by_steps = given_.has("every_n_train_steps") && o_.checkpoints.every_n_train_steps > 0;
    if (!o_.enable_checkpointing) {
      if (saves_by_steps) warn("every_n_train_steps", "--no-enable-checkpointing");
      for (const char* option : {"save_top_k", "monitor"})
        if (given_.has(option)) warn(option, "--no-enable-checkpointing");
    }
    if (!o_.early_stopping.monitor.empty()) return;
    for (const char* option : {"patience", "min_delta"})
      if (given_.has(option)) warn(option, "no --early-stopping");
  }

  void of_the_monitor() const {
    const bool monitors = std::count(o_.callbacks.begin(), o_.callbacks.end(), "PrecisionMonitor") > 0;
    const auto is_above_0 = [&](const char* option) {
      const auto* const n = given_.get_if<int64_t>(option);
      return n && *n > 0;
    };
    for (const char* option : {"precision_every_n_steps", "error_every_n_steps"})
      if (is_above_0(option) && !monitors) warn(option, "no --callbacks PrecisionMonitor");
    if (is_above_0("error_every_n_steps") && monitors && o_.precision() != "all" &&
        !o_.traits().layer_products)
      warn("error_every_n_steps", "--precision " + o_.precision() + ", which has no FP8 products");
  }

  void of_divergence() const {
    const bool monitors = std::count(o_.callbacks.begin(), o_.callbacks.end(), "DivergenceMonitor") > 0;
    for (const char* option : {"divergence_patience", "divergence_factor"})
      if (given_.has(option) && o_.fallback.empty() && !monitors)
        warn(option, "neither --fallback nor --callbacks DivergenceMonitor");
  }

  void of_the_mode() const {
    if (o_.precision() == "all") return;
    const std::string precision = "--precision " + o_.precision();
    const PrecisionTraits traits = o_.traits();
    if (is_given("transactional") && !traits.scales_loss)
      warn("transactional", precision + ", which never skips a step without a loss scale");
    const auto* const overflow = given_.get_if<std::string>("on_overflow");
    if (overflow && *overflow == "retry" && !traits.scales_loss)
      warn("on_overflow", precision + ", which never skips a step without a loss scale");
    if (is_given("transactional") && traits.scales_loss && !has_buffers(o_.model))
      warn("transactional", "--model " + o_.model + ", which has no batch norm");
    if (is_given("stochastic_rounding") && !is_16_bit(traits.gradients))
      warn("stochastic_rounding", precision + ", whose optimizer has no 16-bit weights");
    const auto* const products = given_.get_if<std::string>("float32_matmul_precision");
    const bool are_float32 = traits.compute == Format::kFloat32 || traits.compute == Format::kTF32;
    if (products && *products != "auto" && *products != "highest" && !are_float32)
      warn("float32_matmul_precision", precision + ", whose products are not float32");
  }

  void of_random_weights() const {
    if ((given_.has("lora") || given_.has("adapter")) && has_adapter(o_) && o_.weights.empty()) {
      TORCH_WARN(
          "an adapter is trained on frozen weights, which are random without --weights; give the file "
          "of the model to fine-tune");
    } else if (given_.has("precision") && quantizes_weights() && o_.weights.empty()) {
      TORCH_WARN(
          "--precision ", o_.precision(),
          " freezes the weights that it quantizes, which are random without --weights; give the file of "
          "the model to fine-tune");
    } else if (given_.has("train_only") && !o_.train_only.empty() && o_.weights.empty()) {
      TORCH_WARN(
          "--train-only freezes the other weights, which are random without --weights; give the file of the "
          "model to fine-tune");
    }
  }

  void of_model_and_data() const {
    if (is_given("channels_last") || is_given("benchmark")) {
      const std::string no_convolutions = "--model " + o_.model + ", which has no convolutions";
      const bool convolves = has_convolutions(o_.model), on_cpu = o_.trainer.device == "cpu";
      if (is_given("channels_last") && !convolves) warn("channels_last", no_convolutions);
      if (is_given("benchmark") && (on_cpu || !convolves))
        warn("benchmark", on_cpu ? "--device cpu, which has no cuDNN" : no_convolutions);
    }
    const DataKind& data = *find_data_kind(o_.data);
    for (const std::string& option : options_of_some_data())
      if (is_given(option) && !data.takes(option)) warn(option, "--data " + o_.data);
    if (given_.has("val_fraction") && data.has_val_part && data.has_val_part(path_of_data(o_.data)))
      warn("val_fraction", "--data " + o_.data + ", which has a part of its own to validate on");
    if (is_given("new_head") && o_.weights.empty()) warn("new_head", "no --weights");
  }

 private:
  bool quantizes_weights() const { return o_.precision() != "all" && o_.traits().frozen_weights; }
  /// A switch that is turned off is not expected to have an effect.
  bool is_given(const std::string& option) const {
    const bool* const on = given_.get_if<bool>(option);
    return given_.has(option) && (!on || *on);
  }
  static void warn(const std::string& option, const std::string& because) {
    TORCH_WARN(flag_of(option), " has no effect with ", because, "; leave it out");
  }

  const OptionValues& given_;
  const FitOptions& o_;
};

}  // namespace

void warn_without_effect(const OptionValues& given, const FitOptions& resolved) {
  const Warnings warnings(given, resolved);
  warnings.of_the_optimizer();
  warnings.of_checkpoints_and_stopping();
  warnings.of_the_monitor();
  warnings.of_divergence();
  warnings.of_the_mode();
  warnings.of_model_and_data();
}

void warn_of_random_weights(const OptionValues& given, const FitOptions& resolved) {
  Warnings(given, resolved).of_random_weights();
}

}  // namespace mantissa::cli
