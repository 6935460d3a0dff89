#include "mantissa/weights/replace_weight.h"

#include "mantissa/weights/test_support_internal.h"

namespace mantissa::replace_weight_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ReplaceWeight : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(0); }
};

template <typename Layer>
void expect_agreement(Layer layer) {
  const at::Tensor packed = pack(layer->weight);
  replace_weight(*layer, "weight", packed);
  EXPECT_TRUE(is_packed(layer->weight));
  EXPECT_TRUE(layer->weight.is_same(layer->named_parameters()["weight"]));
  EXPECT_EQ(packed_data(layer->weight), packed_data(packed));
  EXPECT_FALSE(layer->weight.requires_grad());
}

TEST_F(ReplaceWeight, MemberAndParametersAgree) {
  expect_agreement(torch::nn::Linear(8, 4));
  expect_agreement(torch::nn::Embedding(8, 4));
  expect_agreement(torch::nn::Conv1d(2, 3, 3));
  expect_agreement(torch::nn::Conv2d(2, 3, 3));
  expect_agreement(torch::nn::ConvTranspose2d(2, 3, 3));
  expect_agreement(torch::nn::Bilinear(2, 3, 4));
}

TEST_F(ReplaceWeight, FindsWeightsOfSubmodules) {
  torch::nn::Linear inner(8, 4);
  torch::nn::ModuleDict blocks;
  blocks->update({{"head", torch::nn::ModuleList(inner).ptr()}});
  replace_weight(*blocks, "head.0.weight", pack(inner->weight));
  EXPECT_TRUE(is_packed(inner->weight));
}

TEST_F(ReplaceWeight, FreesTheFormerValuesAndTheGradient) {
  torch::nn::Linear layer(8, 4);
  layer(torch::ones({1, 8})).sum().backward();
  const c10::weak_intrusive_ptr<c10::StorageImpl> values(layer->weight.storage().getWeakStorageImpl());
  replace_weight(*layer, "weight", pack(layer->weight));
  EXPECT_TRUE(values.expired());
  EXPECT_FALSE(layer->weight.grad().defined());
  EXPECT_TRUE(layer->bias.grad().defined());
}

TEST_F(ReplaceWeight, ReturnsToAPlainWeightThatTrains) {
  torch::nn::Linear layer(8, 4);
  replace_weight(*layer, "weight", pack(layer->weight));
  const at::Tensor values = layer->weight.dequantize();
  replace_weight(*layer, "weight", values);
  EXPECT_FALSE(is_packed(layer->weight));
  EXPECT_TRUE(at::equal(layer->weight, values));
  EXPECT_FALSE(layer->weight.requires_grad());
  layer->weight.set_requires_grad(true);
  layer(torch::ones({1, 8})).sum().backward();
  EXPECT_TRUE(layer->weight.grad().defined());
  EXPECT_THROW(layer->weight.set_data(pack(values).to(at::kLong)), c10::Error);
}

struct EmptyLinear : torch::nn::Module {
  at::Tensor weight = register_parameter("weight", torch::empty({4, 8}, at::kMeta));
};

TEST_F(ReplaceWeight, FillsAParameterThatHasNoValues) {
  EmptyLinear layer;
  replace_weight(layer, "weight", pack(torch::randn({4, 8}), at::kHalf));
  EXPECT_TRUE(is_packed(layer.weight));
  EXPECT_TRUE(layer.weight.is_cpu());
  EXPECT_EQ(layer.weight.scalar_type(), at::kHalf);
  EXPECT_FALSE(layer.weight.requires_grad());
  EmptyLinear plain;
  EXPECT_THROW(plain.weight.set_data(torch::ones({4, 8})), c10::Error) << "libtorch's own answer";
}

TEST_F(ReplaceWeight, ErrorsNameTheParameterAndChangeNothing) {
  torch::nn::Linear layer(torch::nn::LinearOptions(8, 4).bias(false));
  EXPECT_THAT(error_of([&] { replace_weight(*layer, "weigth", pack(layer->weight)); }),
              AllOf(HasSubstr("'weigth'"), HasSubstr("did you mean 'weight'")));
  EXPECT_THAT(error_of([&] {
                replace_weight(*layer, "weight", pack(torch::ones({4, 7})));
              }),
              AllOf(HasSubstr("[4, 8]"), HasSubstr("[4, 7]")));
  EXPECT_THAT(error_of([&] {
                replace_weight(*layer, "weight", pack(torch::ones({8, 4})).t().t());
              }),
              HasSubstr("[8, 4]"));
  EXPECT_THAT(error_of([&] { replace_weight(*layer, "weight", at::Tensor()); }), HasSubstr("undefined"));
  EXPECT_THROW(replace_weight(*layer, "bias", torch::ones({4})), c10::ValueError) << "the layer has none";
  EXPECT_FALSE(is_packed(layer->weight));
  EXPECT_TRUE(layer->weight.requires_grad());
}

}  // namespace
}  // namespace mantissa::replace_weight_test
