#include "mantissa/amp/nonfinite_gradients.h"

#include <algorithm>
#include <map>
#include <sstream>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/stack.h>
#include <c10/util/ArrayRef.h>

namespace mantissa {

std::vector<NonfiniteGradient> find_nonfinite_gradients(
    const std::vector<std::pair<std::string, at::Tensor>>& named_parameters) {
  const at::NoGradGuard no_grad;
  struct Counts {
    std::vector<size_t> owners;  // the parameter that each pair of counts belongs to
    std::vector<at::Tensor> tensors;
  };
  std::map<std::string, Counts> by_device;
  std::vector<NonfiniteGradient> all(named_parameters.size());
  for (size_t i = 0; i < named_parameters.size(); ++i) {
    const auto& [name, parameter] = named_parameters[i];
    if (!parameter.defined() || !parameter.grad().defined()) continue;
    const at::Tensor& gradient = parameter.grad();
    const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
    all[i] = {.name = name, .sizes = gradient.sizes().vec(), .numel = values.numel()};
    auto& counts = by_device[values.device().str()];
    counts.owners.push_back(i);
    counts.tensors.push_back(at::isinf(values).sum());
    counts.tensors.push_back(at::isnan(values).sum());
  }
  for (const auto& [device, counts] : by_device) {
    const at::Tensor host = at::stack(counts.tensors).cpu();
    const int64_t* count = host.const_data_ptr<int64_t>();
    for (const size_t owner : counts.owners) {
      all[owner].inf_count = *count++;
      all[owner].nan_count = *count++;
    }
  }
  std::erase_if(all, [](const NonfiniteGradient& g) { return g.inf_count == 0 && g.nan_count == 0; });
  return all;
}

std::string describe(const std::vector<NonfiniteGradient>& found, size_t most) {
  std::ostringstream text;
  for (size_t i = 0; i < std::min(most, found.size()); ++i) {
    const auto& g = found[i];
    text << (i == 0 ? "" : "; ") << g.name << " " << at::IntArrayRef(g.sizes) << ": " << g.inf_count
         << " inf, " << g.nan_count << " nan of " << g.numel;
  }
  if (found.size() > most) text << "; and " << found.size() - most << " more";
  return text.str();
}

}  // namespace mantissa
