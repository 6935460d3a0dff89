#include "mantissa/models/mlp.h"

namespace mantissa::mlp_test {
namespace {

TEST(Mlp, NamesShapesAndCountOfParameters) {
  Mlp model(MlpOptions{.in_features = 64, .classes = 10});
  std::vector<std::string> names;
  int64_t count = 0;
  for (const auto& item : model->named_parameters()) {
    names.push_back(item.key());
    count += item.value().numel();
  }
  EXPECT_THAT(names, testing::ElementsAre("layers.0.weight", "layers.0.bias", "layers.1.weight",
                                          "layers.1.bias", "layers.2.weight", "layers.2.bias"));
  EXPECT_EQ(count, 64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10);
  EXPECT_EQ(model(at::zeros({5, 1, 8, 8})).sizes(), (at::IntArrayRef{5, 10}));
  EXPECT_EQ(model(at::zeros({0, 64})).sizes(), (at::IntArrayRef{0, 10}));
}

TEST(Mlp, WithoutHiddenLayersIsLinear) {
  Mlp model(MlpOptions{.in_features = 6, .classes = 2, .hidden = {}});
  const at::Tensor x = at::randn({3, 6});
  const auto parameters = model->parameters();
  ASSERT_EQ(parameters.size(), 2U);
  EXPECT_TRUE(at::allclose(model(x), at::addmm(parameters[1], x, parameters[0].t())));
}

TEST(Mlp, LastLayerIsNotRectified) {
  torch::manual_seed(1);
  Mlp model(MlpOptions{.in_features = 16, .classes = 10});
  EXPECT_LT(model(at::randn({64, 16})).min().item<float>(), 0);
}

TEST(Mlp, RefusesWrongSizes) {
  EXPECT_THROW(Mlp(MlpOptions{.in_features = 0, .classes = 10}), c10::ValueError);
  EXPECT_THROW(Mlp(MlpOptions{.in_features = 4, .classes = 0}), c10::ValueError);
  EXPECT_THROW(Mlp(MlpOptions{.in_features = 4, .classes = 2, .hidden = {8, 0}}), c10::ValueError);
  Mlp model(MlpOptions{.in_features = 4, .classes = 2});
  EXPECT_THROW(model(at::zeros({3, 5})), c10::ValueError);
  EXPECT_THROW(model(at::zeros({4})), c10::ValueError);
}

}  // namespace
}  // namespace mantissa::mlp_test
