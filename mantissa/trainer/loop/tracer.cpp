#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/view_as_real.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "mantissa/core/error_message.h"
#include "mantissa/trainer/loop/tracer_internal.h"

namespace mantissa {
namespace {

/// Sync: reads one number; if that is not finite, two numbers of each gradient.
bool gradients_are_finite(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  at::Tensor total;
  for (const at::Tensor& parameter : main_params(optimizer)) {
    if (!parameter.grad().defined()) continue;
    const at::Tensor gradient = parameter.grad().detach();
    const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
    if (values.numel() == 0) continue;
    gradients.push_back(values.is_complex() ? at::view_as_real(values) : values);
    const at::Tensor sum = gradients.back().sum().to(at::kDouble);
    total = total.defined() ? total + sum.to(total.device()) : sum;
  }
  // A finite sum has only finite terms, and it is the fastest check of a gradient. A sum that is not finite
  // may itself have overflowed.
  if (!total.defined() || std::isfinite(total.item<double>())) return true;
  return std::all_of(gradients.begin(), gradients.end(), [](const at::Tensor& gradient) {
    const auto [low, high] = at::aminmax(gradient);
    return std::isfinite(low.item<double>()) && std::isfinite(high.item<double>());
  });
}

constexpr const char *kTracesLeftKey = "traces_left", *kOverflowsKey = "overflows_in_a_row",
                     *kHasWarnedKey = "has_warned_of_scale", *kReportedKey = "reported";

}  // namespace

void Tracer::begin_window(torch::nn::Module& module, int64_t batches) {
  clear();
  window_size_ = batches;
  if (options_.transactional) before_window_.emplace(module);
}

void Tracer::begin_batch(const torch::nn::Module& module, const Batch& batch) {
  is_batch_kept_ = options_.trace_nonfinite && traces_left_ > 0;
  if (is_batch_kept_) window_.push_back({batch, progress_.now().batches, ReplayPoint(module)});
}

void Tracer::end_batch(torch::nn::Module& module, const at::Tensor& loss) {
  if (!is_batch_kept_) return;
  if (!loss.defined()) {
    window_.pop_back();  // left out: it cannot be the origin
  } else if (!std::isfinite(loss.item<double>())) {
    trace(module);
  }
}

void Tracer::check_gradients(torch::nn::Module& module, torch::optim::Optimizer& optimizer) {
  // A scaler skips the step, so the trace can wait until then; without one the step breaks the weights.
  const bool is_wanted = !window_.empty() && !precision_.traits().scales_loss && !is_traced_;
  if (is_wanted && !gradients_are_finite(optimizer)) trace(module);
}

void Tracer::end_window(torch::nn::Module& module, const StepResult& step) {
  // Only here does the host need to know whether a fused optimizer has stepped.
  if (options_.trace_nonfinite) {
    if (step.cause() == SkipCause::kNonFiniteGradients) trace(module);
    if (!step.skipped()) overflows_in_a_row_ = 0;
  }
  if (before_window_ && step.skipped()) before_window_->restore_buffers();
  is_traced_ = false;
}

void Tracer::clear() {
  window_.clear();
  before_window_.reset();
}

void Tracer::save(StateDict& state) const {
  if (!options_.trace_nonfinite) return;
  StateList reported;
  for (const std::string& text : reported_) reported.emplace_back(text);
  state["trace_nonfinite"] = StateDict{{kTracesLeftKey, traces_left_},
                                       {kOverflowsKey, overflows_in_a_row_},
                                       {kHasWarnedKey, has_warned_of_scale_},
                                       {kReportedKey, std::move(reported)}};
}

// A run that was not traced has nothing to load: its resumed run reports everything once.
void Tracer::load(const StateReader& state, Differences& /*differences*/) {
  const std::optional<StateReader> saved = state.find("trace_nonfinite");
  if (!saved || !options_.trace_nonfinite) return;
  const auto traces_left = static_cast<int>(saved->at(kTracesLeftKey).to_int(0, TrainerOptions::kMaxTraces));
  const int64_t overflows = saved->at(kOverflowsKey).to_count();
  const bool has_warned = saved->at(kHasWarnedKey).to_bool();
  std::set<std::string> reported;
  const StateReader texts = saved->at(kReportedKey);
  for (size_t i = 0; i < texts.size(); ++i) reported.insert(texts.at(i).to_string());
  traces_left_ = traces_left;
  overflows_in_a_row_ = overflows;
  has_warned_of_scale_ = has_warned;
  reported_ = std::move(reported);
}

std::optional<NonFiniteOrigin> Tracer::take_new_origin() {
  return std::exchange(is_origin_new_, false) ? origin_ : std::nullopt;
}

void Tracer::trace(torch::nn::Module& module) {
  if (is_traced_ || traces_left_ == 0) return;
  std::vector<WindowBatch> batches;
  for (const KeptBatch& kept : window_) {
    const auto forward_and_loss = [this, &kept] {
      const at::Tensor loss = forward_(kept.batch, kept.index);
      TORCH_CHECK(loss.defined(), "training_step() of batch ", kept.index,
                  " returned no loss when it was repeated");
      const at::Tensor scale = precision_.loss_scale();
      return scale.defined() ? loss / window_size_ * scale.to(loss.device()) : loss / window_size_;
    };
    batches.push_back({forward_and_loss, &kept.before});
  }
  std::optional<WindowOrigin> found;
  std::string failure =
      "gave finite gradients when it was repeated; possible causes are nondeterministic operations and code "
      "that changes gradients after the backward pass (a hook, on_after_backward)";
  try {
    found = trace_nonfinite_window(module, batches);
  } catch (const std::exception& error) {  // a failed trace must not end the training
    failure = "could not be run again: " + message_of(error);
  }
  if (!found) {
    --traces_left_;
    TORCH_WARN("trace_nonfinite: the window that ends with batch ", progress_.now().batches, " of epoch ",
               progress_.now().epoch, " ", failure);
    return;
  }
  origin_ = found->origin;
  is_traced_ = is_origin_new_ = true;
  report(window_[found->batch].index);
}

void Tracer::report(int64_t batch_index) {
  const std::string where =
      "batch " + std::to_string(batch_index) + " of epoch " + std::to_string(progress_.now().epoch) + ": ";
  const bool is_scale =
      origin_->cause == NonFiniteCause::kLossScale || origin_->cause == NonFiniteCause::kAccumulation;
  const bool is_fixed = precision_.is_loss_scale_fixed();
  if (is_scale && precision_.traits().scales_loss && !is_fixed) {
    if (++overflows_in_a_row_ % TrainerOptions::kOverflowsInARow != 0) {
      if (std::exchange(has_warned_of_scale_, true)) return;
      TORCH_WARN(where, "the step was skipped, since ",
                 origin_->backward ? "a gradient of " + origin_->op : "the loss", " at the loss scale ",
                 precision_.loss_scale().item<double>(), " is beyond ", c10::toString(origin_->result.dtype),
                 ". The scaler lowers the scale by itself, which is how it finds a fitting one; this is "
                 "reported again only when ",
                 TrainerOptions::kOverflowsInARow, " steps in a row are skipped");
      return;
    }
    origin_->cure = std::to_string(overflows_in_a_row_) +
                    " steps in a row were skipped, each at a lower scale: the cause is this operation, not "
                    "the scale. Run it in float32, or train in bf16, whose range is float32's";
  } else if (is_scale && is_fixed) {
    origin_->cure = fmt::format(
        "the loss scale is fixed at {} (--loss-scale, PrecisionOptions::loss_scale), which is too high for "
        "this gradient: give a lower one, or dynamic, which finds it by itself",
        precision_.loss_scale().item<double>());
  } else if (is_scale) {
    origin_->cure =
        "the loss is not scaled, so this gradient is too large by itself: clamp the values that produce it, "
        "run this part in float32, or train in bf16, whose range is float32's";
  }
  --traces_left_;
  if (origin_->cause == NonFiniteCause::kParameter) {
    traces_left_ = 0;
    origin_->cure =
        (progress_.now().steps == progress_.skipped_steps().count()
             ? "it was already not finite before the first step: check the file that the weights were "
               "loaded from, or their initialization"
             : "an earlier step made it non-finite: stop, and resume from an earlier checkpoint") +
        std::string(". All later results are wrong, and later batches are not traced");
  }
  // The same fault in several batches is one fault.
  const std::string cause(to_string(origin_->cause));
  const std::string what = (origin_->backward ? "backward: " : "forward: ") + origin_->op +
                           (origin_->inside_module ? " in " : " after ") +
                           (origin_->module.empty() ? "the root module" : origin_->module);
  if (overflows_in_a_row_ == 0 && !reported_.insert(what + cause).second) {
    TORCH_WARN(where, "again ", what, ": ", cause);
    return;
  }
  TORCH_WARN(where, origin_->to_string());
}

}  // namespace mantissa
