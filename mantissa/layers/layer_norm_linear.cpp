#include "mantissa/layers/layer_norm_linear.h"

#include <ostream>
#include <set>

#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>

#include "mantissa/layers/parameters_internal.h"

namespace mantissa {
namespace {

void check(const LayerNormLinearOptions& options) {
  constexpr const char* kWho = "LayerNormLinear";
  check_size(kWho, "in_features", options.in_features);
  check_size(kWho, "out_features", options.out_features);
  if (options.parameters_split.empty()) return;
  int64_t sum = 0;
  std::set<std::string> names;
  for (const auto& [name, features] : options.parameters_split) {
    TORCH_CHECK_VALUE(!name.empty() && names.insert(name).second, "LayerNormLinear: parameters_split has ",
                      name.empty() ? "a part without a name" : "two parts named '" + name + "'",
                      "; give each part a name of its own");
    check_size(kWho, ("the size of part '" + name + "'").c_str(), features);
    sum += features;
  }
  TORCH_CHECK_VALUE(sum == options.out_features, "LayerNormLinear: the parts of parameters_split have ", sum,
                    " features, and out_features is ", options.out_features, "; make them equal");
}

/// Returns what the parameters' names of each part begin with, and its output features.
std::vector<std::pair<std::string, int64_t>> parts_of(const LayerNormLinearOptions& options) {
  if (options.parameters_split.empty()) return {{"", options.out_features}};
  std::vector<std::pair<std::string, int64_t>> parts = options.parameters_split;
  for (auto& part : parts) part.first += "_";
  return parts;
}

}  // namespace

LayerNormLinearImpl::LayerNormLinearImpl(LayerNormLinearOptions options) : options_(std::move(options)) {
  check(options_);
  reset();
}

void LayerNormLinearImpl::reset() {
  register_norm(*this, options_.in_features, options_.normalization);
  for (const auto& [prefix, features] : parts_of(options_))
    register_linear(*this, prefix, options_.in_features, features, options_.bias);
}

void LayerNormLinearImpl::pretty_print(std::ostream& stream) const {
  stream << "mantissa::LayerNormLinear(in_features=" << options_.in_features
         << ", out_features=" << options_.out_features << ", bias=" << std::boolalpha << options_.bias << ")";
}

std::pair<std::vector<at::Tensor>, at::Tensor> LayerNormLinearImpl::forward_with_norm(const at::Tensor& x) {
  const OwnParameters own(*this);
  const at::Tensor normalized =
      normalize(x, own["layer_norm_weight"], own["layer_norm_bias"], options_.normalization);
  std::vector<at::Tensor> parts;
  for (const auto& [prefix, features] : parts_of(options_))
    parts.push_back(at::linear(normalized, own[prefix + "weight"], own[prefix + "bias"]));
  return {std::move(parts), normalized};
}

std::vector<at::Tensor> LayerNormLinearImpl::forward_parts(const at::Tensor& x) {
  return forward_with_norm(x).first;
}

at::Tensor LayerNormLinearImpl::forward(const at::Tensor& x) {
  const std::vector<at::Tensor> parts = forward_parts(x);
  return parts.size() == 1 ? parts.front() : at::cat(parts, -1);
}

std::vector<std::string> LayerNormLinearImpl::linear_weights() const {
  std::vector<std::string> names;
  for (const auto& [prefix, features] : parts_of(options_)) names.push_back(prefix + "weight");
  return names;
}

}  // namespace mantissa
