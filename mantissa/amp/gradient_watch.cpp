#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>

#include "mantissa/amp/gradient_watch_internal.h"

namespace mantissa {

GradientWatch::GradientWatch(const std::vector<at::Tensor>& parameters) {
  watched_.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) add(parameter, gradient_of(parameter));
  measure(parameters);
}

void GradientWatch::add(const at::Tensor& parameter, const at::Tensor& gradient) {
  Watched watched{gradient.defined(), WeakKey<at::Tensor>::weak(gradient), version_of(gradient), nullptr,
                  at::Tensor()};
  if (gradient.defined() && !gradient.unsafeGetTensorImpl()->unique_version()) {
    watched.is_accumulated = std::make_shared<std::atomic<bool>>(false);
    hooks_.emplace_back(parameter, GradientHookOrder::kReduce,
                        [flag = watched.is_accumulated](const at::Tensor&) { *flag = true; });
  }
  watched_.push_back(std::move(watched));
}

// Only the values show that gradients were cleared in place. They must be looked at before the pass writes
// them; nothing is read on the host yet.
void GradientWatch::measure(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  for (size_t i = 0; i < watched_.size(); ++i) {
    if (!watched_[i].has_gradient) continue;
    const at::Tensor& gradient = parameters[i].grad();
    values.push_back(gradient.is_sparse() ? gradient._values() : gradient);
  }
  if (values.empty()) return;
  const std::vector<at::Tensor> norms = at::_foreach_norm(values, 1);
  size_t next = 0;
  for (Watched& watched : watched_)
    if (watched.has_gradient) watched.norm = norms[next++];
}

bool GradientWatch::is_written(const Watched& watched, const at::Tensor& gradient) {
  if (!gradient.defined()) return false;
  // With create_graph, accumulation replaces the gradient by a sum instead of adding in place.
  if (gradient.unsafeGetTensorImpl() != watched.gradient._unsafe_get_target()) return true;
  if (watched.is_accumulated) return *watched.is_accumulated;
  return version_of(gradient) != watched.version;
}

std::vector<GradientOrigin> GradientWatch::origins(const std::vector<at::Tensor>& gradients,
                                                   std::vector<GradientOrigin> from) const {
  std::vector<bool> written(gradients.size());
  bool any_written = false;
  for (size_t i = 0; i < gradients.size(); ++i) {
    written[i] = is_written(watched_[i], gradients[i]);
    any_written = any_written || written[i];
    if (!watched_[i].has_gradient) from[i] = written[i] ? GradientOrigin::kNew : GradientOrigin::kChecked;
    if (from[i] == GradientOrigin::kZero) from[i] = GradientOrigin::kChecked;
  }
  if (!any_written) return from;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!watched_[i].has_gradient) continue;
    if (watched_[i].norm.item<double>() == 0)
      from[i] = written[i] ? GradientOrigin::kNew : GradientOrigin::kZero;
    else if (written[i] && from[i] == GradientOrigin::kChecked)
      from[i] = GradientOrigin::kMixed;
  }
  return from;
}

}  // namespace mantissa
