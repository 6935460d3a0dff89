#include "mantissa/amp/grad_norm.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

namespace mantissa::grad_norm_test {
namespace {

TEST(GradNorm, NF04_NamesEveryGradientAndTheTotal) {
  torch::nn::Linear net(2, 1);
  EXPECT_TRUE(grad_norm(net->named_parameters().pairs()).empty());
  net->weight.mutable_grad() = torch::tensor({{3.0F, -4.0F}});
  EXPECT_THAT(
      grad_norm(net->named_parameters().pairs()),
      testing::ElementsAre(testing::Key("grad_2.0_norm/weight"), testing::Key("grad_2.0_norm_total")));
  net->bias.mutable_grad() = torch::tensor({12.0F});
  const auto two = grad_norm(net->named_parameters().pairs());
  EXPECT_EQ(two.at("grad_2.0_norm/weight").item<float>(), 5);
  EXPECT_EQ(two.at("grad_2.0_norm_total").item<float>(), 13);
  EXPECT_EQ(grad_norm(net->named_parameters().pairs(), HUGE_VAL).at("grad_inf_norm_total").item<float>(), 12);
  EXPECT_EQ(grad_norm(net->named_parameters().pairs(), 1).at("grad_1.0_norm_total").item<float>(), 19);
  EXPECT_TRUE(grad_norm(net->named_parameters().pairs(), 0.5).contains("grad_0.5_norm/bias"));
}

TEST(GradNorm, NF04_RefusesOrdersThatAreNoNorm) {
  for (const double wrong : {0.0, -1.0, std::nan("")}) EXPECT_THROW(grad_norm({}, wrong), c10::ValueError);
}

}  // namespace
}  // namespace mantissa::grad_norm_test
