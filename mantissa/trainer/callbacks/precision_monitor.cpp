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

}  // namespace

struct PrecisionMonitor::Measurement {
  int64_t global_step = 0;
  at::Tensor skipped_steps;                ///< 0-dim
  at::Tensor scale;                        ///< 0-dim; undefined where the mode does not scale
  std::map<size_t, at::Tensor> grad_norm;  ///< 0-dim
  std::map<std::string, Seen> gradients;

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
  TORCH_CHECK_VALUE(options_.every_n_steps.value_or(1) >= 1,
                    "PrecisionMonitor: every_n_steps=", *options_.every_n_steps,
                    "; give 1 or more, or leave it unset");
}

PrecisionMonitor::~PrecisionMonitor() = default;

StateDict PrecisionMonitor::state_dict() const { return {{"skipped_steps", as_count(skipped_before_)}}; }

void PrecisionMonitor::on_fit_start(Trainer& /*trainer*/, const FitPlan& /*plan*/) {
  now_.reset();
  last_.reset();
  skipped_before_ = count_of(0);
}

void PrecisionMonitor::on_train_batch_start(Trainer& /*trainer*/, const Batch& /*batch*/,
                                            int64_t /*batch_index*/) {
  now_.reset();
}

bool PrecisionMonitor::is_due(const Trainer& trainer) const {
  if (!options_.every_n_steps) return trainer.should_log();
  const auto optimizers = static_cast<int64_t>(trainer.optimizers().size());
  return (trainer.progress().steps / optimizers + 1) % *options_.every_n_steps == 0;
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
  trainer.log_metrics(metrics);
}

std::optional<PrecisionReport> PrecisionMonitor::report() const {
  if (!last_) return std::nullopt;
  PrecisionReport report{.global_step = last_->global_step, .skipped_steps = as_count(last_->skipped_steps)};
  if (last_->scale.defined()) report.scale = last_->scale.item<double>();
  for (const auto& [index, norm] : last_->grad_norm) report.grad_norm.emplace(index, norm.item<double>());
  report.total = shares(last_->total());
  for (const auto& [name, seen] : last_->gradients) report.gradients.emplace(name, shares(seen));
  return report;
}

void PrecisionMonitor::load_state_dict(const StateReader& state) {
  skipped_before_ = count_of(state.at("skipped_steps").to_count());
}

}  // namespace mantissa
