#include "mantissa/layers/activation.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>

#include "mantissa/layers/test_support_internal.h"

namespace mantissa::layers_test {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

TEST(Activation, EachEqualsItsFormula) {
  const std::map<std::string, double (*)(double)> formulas{
      {"gelu", gelu},
      {"geglu", gelu},
      {"qgelu", [](double x) { return x * sigmoid(1.702 * x); }},
      {"qgeglu", [](double x) { return x * sigmoid(1.702 * x); }},
      {"relu", [](double x) { return std::max(x, 0.0); }},
      {"reglu", [](double x) { return std::max(x, 0.0); }},
      {"srelu", [](double x) { return std::max(x, 0.0) * std::max(x, 0.0); }},
      {"sreglu", [](double x) { return std::max(x, 0.0) * std::max(x, 0.0); }},
      {"silu", [](double x) { return x * sigmoid(x); }},
      {"swiglu", [](double x) { return x * sigmoid(x); }},
      {"glu", sigmoid}};
  ASSERT_EQ(formulas.size(), activations().size());
  const torch::Tensor x = torch::linspace(-4, 4, 24, at::kDouble).view({3, 8});
  for (const Activation& activation : activations()) {
    const torch::Tensor y = activation(x);
    const int64_t width = activation.is_gated ? 4 : 8;
    ASSERT_EQ(y.sizes(), (std::vector<int64_t>{3, width})) << activation.name;
    for (int64_t row = 0; row < 3; ++row)
      for (int64_t i = 0; i < width; ++i) {
        const double gate = activation.is_gated ? x[row][width + i].item<double>() : 1;
        EXPECT_NEAR(y[row][i].item<double>(), formulas.at(activation.name)(x[row][i].item<double>()) * gate,
                    1e-12)
            << activation.name;
      }
  }
}

TEST(Activation, AnUnknownNameIsAnErrorThatListsTheOthers) {
  EXPECT_STREQ(find_activation("swiglu").name, "swiglu");
  EXPECT_THAT(error_of([] { find_activation("swigul"); }),
              testing::AllOf(testing::HasSubstr("activation 'swigul' is unknown; did you mean 'swiglu'?"),
                             testing::HasSubstr("choose from gelu, geglu")));
}

}  // namespace
}  // namespace mantissa::layers_test
