#include "mantissa/trainer/metrics.h"

#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <vector>

#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tensor.h>

#include "mantissa/core/fnv1a_internal.h"
#include "mantissa/trainer/loop/agreement_internal.h"

namespace mantissa {
namespace {

/// Adds the mean of values whose weighted sum is `total`, unless they have no weight.
void add_mean(Metrics& means, const std::string& name, double total, double weight) {
  if (weight == 0) return;
  const double mean = total / weight;
  means[name] = std::isnan(mean) ? std::abs(mean) : mean;  // some nans print a sign
}

}  // namespace

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

void MeanMetrics::add(const MeanMetrics& other) {
  for (const auto& [name, added] : other.sums_) {
    Sum& sum = sums_[name];
    sum.host += added.host;
    sum.weight += added.weight;
    if (added.device.defined())
      sum.device = sum.device.defined() ? sum.device.add(added.device) : added.device;
  }
}

Metrics MeanMetrics::compute() const {
  Metrics means;
  for (const auto& [name, sum] : sums_) add_mean(means, name, sum.total(), sum.weight);
  return means;
}

Metrics MeanMetrics::compute(Strategy& strategy) const {
  if (strategy.world_size() == 1) return compute();
  std::string names;
  std::vector<double> numbers;
  for (const auto& [name, sum] : sums_) {
    names += (names.empty() ? "" : ", ") + name;
    numbers.push_back(sum.total());
    numbers.push_back(sum.weight);
  }
  const auto [smallest, largest] = range_of_processes(strategy, static_cast<int64_t>(fnv1a(names) >> 1));
  TORCH_CHECK_VALUE(smallest == largest, "log: the processes logged different metrics, and this one logged ",
                    names.empty() ? "none" : names, "; log the same names in every process");
  Metrics means;
  if (numbers.empty()) return means;
  const at::Tensor all = strategy.all_reduce(at::tensor(numbers, at::kDouble), ReduceOp::kSum).contiguous();
  const double* number = all.const_data_ptr<double>();
  for (const auto& [name, sum] : sums_) {
    add_mean(means, name, number[0], number[1]);
    number += 2;
  }
  return means;
}

double MeanMetrics::Sum::total() const { return host + (device.defined() ? device.item<double>() : 0.0); }

StateDict MeanMetrics::state_dict() const {
  StateDict state;
  for (const auto& [name, sum] : sums_) {
    StateDict entry{{"host", sum.host}, {"weight", sum.weight}};
    if (sum.device.defined()) entry.emplace("device", sum.device);
    state.emplace(name, std::move(entry));
  }
  return state;
}

void MeanMetrics::load_state_dict(const StateReader& state) {
  std::map<std::string, Sum> sums;
  for (const auto& [name, value] : state.to_dict()) {
    const StateReader entry = state.at(name);
    Sum& sum = sums[name];
    sum.host = entry.at("host").to_double();
    sum.weight = entry.at("weight").to_double(0, std::numeric_limits<double>::max());
    // It stays on the CPU: a 0-dim tensor may be added to on any device.
    if (const auto device = entry.find("device")) {
      if (device->to_tensor().dim() != 0) device->fail("is not a single number");
      sum.device = device->to_tensor().clone();
    }
  }
  sums_ = std::move(sums);
}

StateDict to_state(const Metrics& metrics) {
  StateDict state;
  for (const auto& [name, value] : metrics) state.emplace(name, value);
  return state;
}

Metrics metrics_of(const StateReader& state) {
  Metrics metrics;
  for (const auto& [name, value] : state.to_dict()) metrics[name] = state.at(name).to_double();
  return metrics;
}

}  // namespace mantissa
