#include "mantissa/amp/gradients_internal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <vector>

#include <torch/torch.h>

namespace mantissa::gradients_internal_test {
namespace {

using testing::ElementsAre;

at::Tensor with_gradient(at::ScalarType dtype) {
  at::Tensor weight = torch::ones({2}, dtype).set_requires_grad(true);
  weight.mutable_grad() = torch::ones({2}, dtype);
  return weight;
}

// Each group costs a call of the kernel that unscales.
TEST(GradientGroups, GradientsOfOneDtypeAreOneGroupAndATiedWeightCountsOnce) {
  const at::Tensor a = with_gradient(at::kFloat), b = with_gradient(at::kHalf), c = with_gradient(at::kFloat);
  const at::Tensor frozen = torch::ones({2});
  torch::optim::SGD sgd(std::vector<at::Tensor>{a, b, frozen}, 1.0);
  sgd.add_param_group(torch::optim::OptimizerParamGroup({c, a}));
  std::vector<std::vector<const void*>> groups;
  for (const GradientGroup& group : gradient_groups(sgd)) {
    groups.emplace_back();
    for (const at::Tensor& gradient : group.gradients) {
      EXPECT_EQ(gradient.scalar_type(), group.dtype);
      groups.back().push_back(gradient.unsafeGetTensorImpl());
    }
  }
  EXPECT_THAT(groups, ElementsAre(ElementsAre(a.grad().unsafeGetTensorImpl(), c.grad().unsafeGetTensorImpl()),
                                  ElementsAre(b.grad().unsafeGetTensorImpl())));
}

}  // namespace
}  // namespace mantissa::gradients_internal_test
