#include <unordered_map>

#include <c10/util/Exception.h>

#include "mantissa/optim/optimizer_internal.h"

namespace mantissa {

std::vector<torch::optim::OptimizerParamGroup> unique_parameters(
    const char* optimizer, const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<torch::optim::OptimizerParamGroup> result;
  result.reserve(groups.size());
  std::unordered_map<const c10::TensorImpl*, size_t> group_of;
  for (size_t group = 0; group < groups.size(); ++group) {
    result.push_back(groups[group]);
    result.back().params().clear();
    for (const at::Tensor& parameter : groups[group].params()) {
      const auto [found, first] = group_of.emplace(parameter.unsafeGetTensorImpl(), group);
      TORCH_CHECK_VALUE(found->second == group, optimizer, ": a parameter of shape ", parameter.sizes(),
                        " is in parameter groups ", found->second, " and ", group,
                        "; keep it in one of them");
      if (first) result.back().params().push_back(parameter);
    }
  }
  return result;
}

}  // namespace mantissa
