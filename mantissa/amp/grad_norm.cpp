#include "mantissa/amp/grad_norm.h"

#include <array>
#include <charconv>
#include <cmath>

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

namespace mantissa {
namespace {

/// Formats numbers of ordinary size like Python's str(float): "2.0", "0.5", "inf".
std::string python_float(double value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.begin(), buffer.end(), value).ptr;
  std::string text(buffer.begin(), end);
  return std::isfinite(value) && text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

}  // namespace

std::map<std::string, at::Tensor> grad_norm(
    const std::vector<std::pair<std::string, at::Tensor>>& named_parameters, double norm_type) {
  TORCH_CHECK_VALUE(norm_type > 0, "grad_norm: norm_type must be above 0 or inf, got ", norm_type);
  const std::string prefix = "grad_" + python_float(norm_type) + "_norm";
  std::map<std::string, at::Tensor> norms;
  std::vector<at::Tensor> all;
  for (const auto& [name, parameter] : named_parameters) {
    if (!parameter.grad().defined()) continue;
    const at::Tensor norm = at::linalg_vector_norm(parameter.grad().detach(), norm_type);
    norms[prefix + "/" + name] = norm;
    all.push_back(all.empty() ? norm : norm.to(all.front().options()));
  }
  if (!all.empty()) norms[prefix + "_total"] = at::linalg_vector_norm(at::stack(all), norm_type);
  return norms;
}

}  // namespace mantissa
