#include "mantissa/trainer/metrics.h"

#include <cmath>
#include <fmt/format.h>

#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>

namespace mantissa {

std::string format_metric(double value) {
  if (std::isnan(value)) return "nan";
  return fmt::format(fmt::runtime(std::abs(value) < 1e5 ? "{:.4f}" : "{:.3e}"), value);
}

void MeanMetrics::add(const std::string& name, const at::Tensor& value, double weight) {
  TORCH_CHECK_VALUE(value.defined() && value.numel() == 1, "log('", name, "'): a metric is one number, got ",
                    value.defined() ? "shape " + c10::str(value.sizes()) : "an undefined tensor",
                    "; reduce it first, for example with .mean()");
  if (value.is_cpu()) return add(name, value.item<double>(), weight);
  Sum& sum = sums_[name];
  const at::Tensor term = value.detach().reshape({}).to(at::kDouble).mul(weight);
  sum.device = sum.device.defined() ? sum.device.add(term) : term;
  sum.weight += weight;
}

void MeanMetrics::add(const std::string& name, double value, double weight) {
  Sum& sum = sums_[name];
  sum.host += value * weight;
  sum.weight += weight;
}

Metrics MeanMetrics::compute() const {
  Metrics means;
  for (const auto& [name, sum] : sums_) {
    if (sum.weight == 0) continue;
    const double total = sum.host + (sum.device.defined() ? sum.device.item<double>() : 0.0);
    const double mean = total / sum.weight;
    means[name] = std::isnan(mean) ? std::abs(mean) : mean;  // some nans have a sign, and print it
  }
  return means;
}

}  // namespace mantissa
