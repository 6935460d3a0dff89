#include "mantissa/trainer/callbacks/precision_monitor.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include "mantissa/core/formats.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {
namespace {

double smallest_normal(at::ScalarType dtype) {
  return info(format_of(dtype).value_or(Format::kFloat32)).smallest_normal;
}

/// A count that may stay on the device: 0-dim float64, as in SkippedSteps.
at::Tensor count_of(int64_t count) { return at::full({}, static_cast<double>(count), at::kDouble); }
int64_t as_count(const at::Tensor& count) { return static_cast<int64_t>(count.item<double>()); }

/// The numbers in `gradient`, in float32 or wider.
at::Tensor values_of(const at::Tensor& gradient) {
  at::Tensor values = gradient.is_sparse() ? gradient.coalesce()._values() : gradient;
  if (values.is_complex()) values = at::view_as_real(values.resolve_conj());
  return values.element_size() < 4 ? values.to(at::kFloat) : values;
}

/// The parameter's name, or "optimizer_0/parameter_3" if the module does not have it.
std::string name_of(const Precision& precision, const at::Tensor& parameter, size_t optimizer,
                    size_t number) {
  const std::string name = precision.parameter_name(parameter);
  return name.empty() ? c10::str("optimizer_", optimizer, "/parameter_", number) : name;
}

/// Numbers that the device may still be computing.
struct Seen {
  at::Tensor counts;  ///< [3] float64: zero, underflow, overflow
  int64_t numel = 0;
};

PrecisionReport::Shares shares(const Seen& seen) {
  if (seen.numel == 0) return {};
  const at::Tensor host = (seen.counts / static_cast<double>(seen.numel)).cpu();
  const double* share = host.const_data_ptr<double>();
  return {share[0], share[1], share[2]};
}

/// Whether the coming step, or the step in progress, of each optimizer is one of every `n`.
bool is_one_of(const Trainer& trainer, std::optional<int64_t> n) {
  const auto optimizers = static_cast<int64_t>(trainer.optimizers().size());
  return n && (trainer.progress().steps / optimizers + 1) % *n == 0;
}

void check_interval(const char* name, std::optional<int64_t> interval) {
  TORCH_CHECK_VALUE(interval.value_or(1) >= 1, "PrecisionMonitor: ", name, "=", *interval,
                    "; give 1 or more, or leave it unset");
}

/// Adds the metrics of a layer.
void add_layer(const std::string& layer, const LayerStatistics& counted, MetricValues& metrics) {
  const auto add = [&](const char* what, const std::string& of, double value) {
    metrics.emplace(c10::str("quantization/", what, "/", layer, "/", of), value);
  };
  for (const auto& [name, tensor] : counted.tensors) {
    add("amax", name, tensor.amax);
    add("underflows", name, tensor.underflow_share());
    add("overflows", name, tensor.overflow_share());
    if (!tensor.scale_min) continue;
    add("scale_min", name, *tensor.scale_min);
    add("scale_max", name, *tensor.scale_max);
  }
  for (const auto& [name, error] : counted.products) add("error", name, error.relative());
}

}  // namespace

struct PrecisionMonitor::Measurement {
  int64_t global_step = 0;
  at::Tensor skipped_steps;                ///< 0-dim
  at::Tensor scale;                        ///< 0-dim; undefined where the mode does not scale
  std::map<size_t, at::Tensor> grad_norm;  ///< 0-dim
  std::map<std::string, Seen> gradients;
  std::map<std::string, LayerStatistics> layers;

  Seen total() const {
    Seen sum;
    for (const auto& [name, seen] : gradients) {
      sum.counts = sum.counts.defined() ? sum.counts + seen.counts.to(sum.counts.device()) : seen.counts;
      sum.numel += seen.numel;
    }
    return sum;
  }
};

PrecisionMonitor::PrecisionMonitor(PrecisionMonitorOptions options) : options_(options) {
  check_interval("every_n_steps", options_.every_n_steps);
  check_interval("error_every_n_steps", options_.error_every_n_steps);
}

PrecisionMonitor::~PrecisionMonitor() = default;

StateDict PrecisionMonitor::state_dict() const { return {{"skipped_steps", as_count(skipped_before_)}}; }

void PrecisionMonitor::on_fit_start(Trainer& trainer, const FitPlan& /*plan*/) {
  trainer.precision().sample_layers(LayerSampling::kNone);
  sampled_.reset();
  last_.reset();
  skipped_before_ = count_of(0);
}

void PrecisionMonitor::on_train_batch_start(Trainer& trainer, const Batch& /*batch*/,
                                            int64_t /*batch_index*/) {
  now_.reset();
  const int64_t steps = trainer.progress().steps;
  if (sampled_ == steps) return;  // another batch of the same window
  const LayerSampling sampling = sampling_of(trainer);
  if (!sampled_ && sampling == LayerSampling::kNone) return;
  trainer.precision().sample_layers(sampling);
  sampled_ = sampling == LayerSampling::kNone ? std::nullopt : std::optional(steps);
}

LayerSampling PrecisionMonitor::sampling_of(const Trainer& trainer) const {
  if (is_one_of(trainer, options_.error_every_n_steps)) return LayerSampling::kTensorsAndErrors;
  // Only the last batch of a window knows that its step makes a row.
  const int64_t rows = trainer.options().loggers.empty() ? 0 : trainer.options().log_every_n_steps;
  const auto interval = options_.every_n_steps ? options_.every_n_steps
                        : rows > 0             ? std::optional(rows)
                                               : std::nullopt;
  return is_one_of(trainer, interval) || is_due(trainer) ? LayerSampling::kTensors : LayerSampling::kNone;
}

bool PrecisionMonitor::is_due(const Trainer& trainer) const {
  return is_one_of(trainer, options_.error_every_n_steps) ||
         (options_.every_n_steps ? is_one_of(trainer, options_.every_n_steps) : trainer.should_log());
}

void PrecisionMonitor::on_before_optimizer_step(Trainer& trainer, torch::optim::Optimizer& optimizer) {
  if (!is_due(trainer)) return;
  const at::NoGradGuard no_grad;
  if (!now_) now_ = std::make_unique<Measurement>();
  const Precision& precision = trainer.precision();
  now_->scale = precision.loss_scale();
  const bool is_scaled = precision.are_gradients_scaled(optimizer);
  const auto& all = trainer.optimizers();
  const auto index = static_cast<size_t>(
      std::find_if(all.begin(), all.end(),
                   [&](const OptimizerConfig& config) { return config.optimizer.get() == &optimizer; }) -
      all.begin());
  const bool fp16 = precision.traits().compute == Format::kFloat16;
  const std::vector<at::Tensor> parameters = main_params(optimizer);
  std::vector<at::Tensor> norms;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    if (!gradient.defined()) continue;
    const at::Tensor values = values_of(gradient.detach());
    if (values.numel() == 0) continue;
    const double own = smallest_normal(gradient.scalar_type());
    const double wanted = fp16 ? info(Format::kFloat16).smallest_normal : own;
    at::Tensor threshold = at::full({}, wanted, at::TensorOptions(values.device()).dtype(at::kDouble));
    if (now_->scale.defined() && !is_scaled) threshold = threshold / now_->scale.to(threshold.options());
    const at::Tensor magnitude = values.abs();
    const at::Tensor counts = at::stack({(magnitude == 0).sum(), (magnitude < threshold.clamp_min(own)).sum(),
                                         at::isfinite(magnitude).logical_not().sum()});
    now_->gradients.insert_or_assign(name_of(precision, parameters[i], index, i),
                                     Seen{counts.to(at::kDouble), values.numel()});
    const at::Tensor norm = at::linalg_vector_norm(values);
    norms.push_back(norms.empty() ? norm : norm.to(norms.front().options()));
  }
  if (norms.empty()) return;
  at::Tensor norm = at::linalg_vector_norm(at::stack(norms));
  if (is_scaled) norm = norm / now_->scale.to(norm.device());
  now_->grad_norm.insert_or_assign(index, norm);
}

void PrecisionMonitor::on_train_batch_end(Trainer& trainer, const TrainBatch& batch) {
  if (!now_) return;
  now_->global_step = batch.global_step;
  now_->layers = trainer.precision().layer_statistics();
  if (sampled_) trainer.precision().sample_layers(LayerSampling::kNone);
  sampled_.reset();
  const at::Tensor skipped = trainer.skipped_steps().count_on_device();
  now_->skipped_steps = skipped - skipped_before_.to(skipped.device());
  skipped_before_ = skipped;
  last_ = std::move(now_);
  log(trainer);
}

void PrecisionMonitor::log(Trainer& trainer) const {
  MetricValues metrics{{"precision/skipped_steps", last_->skipped_steps}};
  if (last_->scale.defined()) metrics.emplace("precision/scale", last_->scale);
  for (const auto& [index, norm] : last_->grad_norm)
    metrics.emplace(trainer.optimizers().size() == 1 ? "precision/grad_norm"
                                                     : "precision/grad_norm/" + std::to_string(index),
                    norm);
  const auto add = [&](const std::string& behind, const Seen& seen) {
    if (seen.numel == 0) return;
    const at::Tensor share = seen.counts / static_cast<double>(seen.numel);
    metrics.emplace("precision/zero" + behind, share.select(0, 0));
    metrics.emplace("precision/underflow" + behind, share.select(0, 1));
    metrics.emplace("precision/overflow" + behind, share.select(0, 2));
  };
  add("_total", last_->total());
  if (options_.per_parameter)
    for (const auto& [name, seen] : last_->gradients) add("/" + name, seen);
  TensorStatistics tensors;
  for (const auto& [name, layer] : last_->layers) {
    if (options_.per_parameter) add_layer(name, layer, metrics);
    for (const auto& [tensor, counted] : layer.tensors) tensors.add(counted);
  }
  if (tensors.numel > 0) {
    metrics.emplace("quantization/underflows_total", tensors.underflow_share());
    metrics.emplace("quantization/overflows_total", tensors.overflow_share());
  }
  trainer.log_metrics(metrics);
}

std::optional<PrecisionReport> PrecisionMonitor::report() const {
  if (!last_) return std::nullopt;
  PrecisionReport report{.global_step = last_->global_step, .skipped_steps = as_count(last_->skipped_steps)};
  if (last_->scale.defined()) report.scale = last_->scale.item<double>();
  for (const auto& [index, norm] : last_->grad_norm) report.grad_norm.emplace(index, norm.item<double>());
  report.total = shares(last_->total());
  for (const auto& [name, seen] : last_->gradients) report.gradients.emplace(name, shares(seen));
  report.layers = last_->layers;
  return report;
}

void PrecisionMonitor::load_state_dict(const StateReader& state) {
  skipped_before_ = count_of(state.at("skipped_steps").to_count());
}

}  // namespace mantissa
