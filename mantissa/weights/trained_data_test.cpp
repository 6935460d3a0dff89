#include "mantissa/weights/trained_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mantissa/weights/marked_weight.h"
#include "mantissa/weights/replace_weight.h"
#include "mantissa/weights/test_support_internal.h"

namespace mantissa::trained_data_test {
namespace {

using testing::HasSubstr;

/// Multiplies the dequantized values, and sends the packed weight its gradient.
class Product : public torch::autograd::Function<Product> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({x});
    return x.matmul(mantissa::dequantize(weight).t());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {at::Tensor(), gradients[0].t().matmul(context->get_saved_variables()[0])};
  }
};

class PackedRule final : public WeightRule {
 public:
  explicit PackedRule(bool computes) : computes_(computes) {}
  std::string description() const override { return "int8 that trains"; }
  bool computes(const at::Tensor& /*factor*/, const at::Tensor& /*weight*/) const override {
    return computes_;
  }
  bool takes_packed() const override { return true; }
  at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const override {
    const at::Tensor y = Product::apply(x, weight);
    return bias.defined() ? y + bias : y;
  }
  WeightRulePtr for_copy() const override { return std::make_shared<PackedRule>(computes_); }

 private:
  bool computes_;
};

/// Returns a layer whose weight is packed and trains.
torch::nn::Linear trained(bool computes = true) {
  torch::nn::Linear layer(8, 4);
  const at::Tensor weight = pack(layer->weight);
  mark_weight(weight, std::make_shared<PackedRule>(computes));
  layer->weight.set_data(weight);
  return layer;
}

TEST(TrainedData, GradientsReachThePackedTensorWhetherTheRuleComputesOrNot) {
  for (const bool computes : {true, false}) {
    torch::manual_seed(1);
    torch::nn::Linear layer = trained(computes);
    ASSERT_TRUE(layer->weight.requires_grad() && is_packed(layer->weight));
    const at::Tensor x = torch::randn({3, 8});
    const at::Tensor y = layer(x);
    y.sum().backward();
    EXPECT_TRUE(y.allclose(torch::linear(x, mantissa::dequantize(layer->weight.detach()), layer->bias)));
    EXPECT_TRUE(layer->weight.grad().allclose(x.sum(0).expand({4, 8})));
    EXPECT_FALSE(is_packed(layer->weight.grad()));
    x.matmul(layer->weight.t()).sum().backward();  // a view of it accumulates
    EXPECT_TRUE(layer->weight.grad().allclose(2 * x.sum(0).expand({4, 8})));
  }
}

TEST(TrainedData, NewDataIsSeenByViewsAndNotByClones) {
  torch::nn::Linear layer = trained();
  const at::Tensor view = layer->weight.detach(), clone = layer->weight.detach().clone(),
                   before = mantissa::dequantize(view);
  EXPECT_TRUE(is_marked(clone));
  replace_trained_data(layer->weight, packed_data(pack(torch::ones({4, 8}))));
  EXPECT_TRUE(mantissa::dequantize(view).equal(mantissa::dequantize(pack(torch::ones({4, 8})))));
  EXPECT_TRUE(mantissa::dequantize(clone).equal(before));
  EXPECT_TRUE(layer->weight.requires_grad() && is_marked(layer->weight));
}

TEST(TrainedData, ACloneOfTheModuleTrainsApart) {
  torch::nn::Sequential model(trained());
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  const at::Tensor weight = copy->named_parameters()["0.weight"],
                   before = mantissa::dequantize(weight.detach());
  EXPECT_TRUE(is_packed(weight) && is_marked(weight) && weight.requires_grad());
  replace_trained_data(model->named_parameters()["0.weight"], packed_data(pack(torch::ones({4, 8}))));
  EXPECT_TRUE(mantissa::dequantize(weight.detach()).equal(before));
}

TEST(TrainedData, APlainWeightTakesItsPlace) {
  torch::nn::Linear layer = trained();
  replace_weight(layer->weight, torch::ones({4, 8}));
  EXPECT_FALSE(is_packed(layer->weight) || is_marked(layer->weight));
}

TEST(TrainedData, AnotherWeightIsRefused) {
  const PackedDataPtr data = packed_data(pack(torch::ones({4, 8})));
  EXPECT_THAT(error_of([&] {
                replace_trained_data(pack(torch::ones({4, 8})), data);
              }),
              HasSubstr("this one is not marked"));
  EXPECT_THAT(error_of([&] {
                replace_trained_data(trained()->weight, packed_data(pack(torch::ones({4, 7}))));
              }),
              HasSubstr("the weight has shape [4, 8], and the data [4, 7]"));
  EXPECT_THAT(error_of([&] { replace_trained_data(trained()->weight, nullptr); }),
              HasSubstr("the data is null"));
}

}  // namespace
}  // namespace mantissa::trained_data_test
