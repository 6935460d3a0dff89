#include <sstream>

#include "mantissa/core/device.h"
#include "mantissa/weights/marked_test_support_internal.h"
#include "mantissa/weights/replace_weight.h"
#include "mantissa/weights/test_support_internal.h"

namespace mantissa::marked_module_test {
namespace {

using testing::HasSubstr;

/// Returns an ordinary tensor with the values of `weight`.
at::Tensor values_of(const at::Tensor& weight) { return weight.detach() + 0; }

class MarkedModules : public testing::Test {
 protected:
  void SetUp() override {
    torch::manual_seed(0);
    rule_ = mark(layer_->weight);
  }

  bool computes_with_the_rule(torch::nn::LinearImpl& layer) const {
    const at::ScalarType dtype = layer.weight.scalar_type();
    const at::Tensor x = torch::randn({5, 6}).to(dtype);
    const torch::NoGradGuard no_grad;
    const auto is_product_of = [&](const at::Tensor& weight) {
      return at::allclose(layer.forward(x), x.matmul(weight.t()) + layer.bias, 1e-2, 1e-2);
    };
    return is_product_of(rounded(layer.weight)) && !is_product_of(values_of(layer.weight));
  }

  torch::nn::Linear layer_{6, 4};
  std::shared_ptr<const RoundingRule> rule_;
};

TEST_F(MarkedModules, TheTensorStaysItself) {
  EXPECT_TRUE(is_marked(layer_->parameters()[0]));
  EXPECT_TRUE(layer_->weight.is_leaf());
  EXPECT_TRUE(layer_->weight.requires_grad());
  EXPECT_EQ(layer_->weight.nbytes(), 4 * 6 * sizeof(float));
  EXPECT_NE(layer_->weight.data_ptr(), nullptr);
  EXPECT_TRUE(layer_->weight.is_cpu());
  EXPECT_EQ(layer_->weight.toString(), "CPUFloatType");
  std::stringstream text, plain;
  text << layer_->weight;
  plain << values_of(layer_->weight);
  EXPECT_EQ(text.str(), plain.str());
}

TEST_F(MarkedModules, ToADtypeKeepsTheMark) {
  layer_->to(at::kHalf);
  EXPECT_TRUE(is_marked(layer_->weight));
  EXPECT_TRUE(computes_with_the_rule(*layer_));
  layer_->to(at::kDouble);
  EXPECT_EQ(layer_->weight.scalar_type(), at::kDouble);
  EXPECT_TRUE(computes_with_the_rule(*layer_));
}

TEST_F(MarkedModules, CudaKeepsTheMark) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  layer_->to(at::kCUDA);
  EXPECT_TRUE(is_marked(layer_->weight));
  layer_(torch::randn({2, 6}, at::kCUDA)).sum().backward();
  EXPECT_TRUE(layer_->weight.grad().is_cuda());
  const auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(layer_->clone(at::Device(at::kCPU)));
  EXPECT_TRUE(is_marked(copy->weight));
}

TEST_F(MarkedModules, ACloneHasARuleOfItsOwn) {
  const auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(layer_->clone());
  ASSERT_TRUE(is_marked(copy->weight));
  EXPECT_NE(weight_rule(copy->weight), weight_rule(layer_->weight));
  EXPECT_TRUE(computes_with_the_rule(*copy));
  EXPECT_TRUE(copy->weight.requires_grad());
  const torch::NoGradGuard no_grad;
  copy->weight.zero_();
  EXPECT_TRUE(computes_with_the_rule(*layer_));
}

TEST_F(MarkedModules, SetDataKeepsTheMark) {
  at::Tensor other = torch::randn({4, 6});
  layer_->weight.set_data(other);
  EXPECT_TRUE(is_marked(layer_->weight));
  EXPECT_EQ(weight_rule(layer_->weight), rule_);
  EXPECT_TRUE(computes_with_the_rule(*layer_));
  layer_->weight.set_data(torch::empty({0}));
  layer_->weight.set_data(torch::randn({4, 6}));
  EXPECT_TRUE(computes_with_the_rule(*layer_));
}

TEST_F(MarkedModules, ItCanBecomePackedAndPlainAgain) {
  replace_weight(*layer_, "weight", pack(layer_->weight));
  EXPECT_TRUE(is_packed(layer_->weight));
  EXPECT_FALSE(is_marked(layer_->weight));
  layer_(torch::randn({2, 6}));
  EXPECT_EQ(rule_->products, 0);
  replace_weight(*layer_, "weight", torch::randn({4, 6}));
  EXPECT_FALSE(is_marked(layer_->weight));
}

TEST_F(MarkedModules, FilesHoldOrdinaryWeightsAndLoadIntoMarkedOnes) {
  std::stringstream file, plain_file;
  torch::save(layer_, file);
  torch::nn::Linear plain(6, 4);
  torch::load(plain, file);
  EXPECT_FALSE(is_marked(plain->weight));
  EXPECT_TRUE(at::equal(plain->weight, values_of(layer_->weight)));
  torch::nn::Linear other(6, 4);
  torch::save(other, plain_file);
  torch::load(layer_, plain_file);
  EXPECT_TRUE(is_marked(layer_->weight));
  EXPECT_TRUE(at::equal(layer_->weight, other->weight));
  EXPECT_TRUE(computes_with_the_rule(*layer_));
}

TEST_F(MarkedModules, TiedWeightsShareTheRule) {
  torch::nn::Embedding table(4, 6);
  table->weight = layer_->weight;
  EXPECT_TRUE(at::equal(table(torch::tensor({2})), values_of(layer_->weight).slice(0, 2, 3)));
  torch::nn::Linear tied(6, 4);
  tied->weight = layer_->weight;
  (tied(torch::ones({1, 6})).sum() + layer_(torch::ones({1, 6})).sum() + table(torch::tensor({0})).sum())
      .backward();
  EXPECT_EQ(rule_->products, 2);
  at::Tensor expected = torch::full({4, 6}, 2.0);
  expected[0] += 1;
  EXPECT_TRUE(at::equal(layer_->weight.grad(), expected));
}

/// Returns the weights after some steps of `make`'s optimizer, with and without a mark.
template <typename Make>
std::pair<at::Tensor, at::Tensor> trained(const Make& make) {
  const auto run = [&](bool is_with_mark) {
    torch::manual_seed(1);
    torch::nn::Linear layer(6, 4);
    // Multiples of 1/4 are their own rounding, so that the first gradients agree.
    layer->weight.set_data(rounded(layer->weight));
    if (is_with_mark) mark(layer->weight);
    const auto optimizer = make(layer->parameters());
    // Both get the same gradients, because the step is compared and not the backward pass.
    for (int step = 0; step < 3; ++step) {
      layer->weight.mutable_grad() = torch::randn({4, 6});
      layer->bias.mutable_grad() = torch::randn({4});
      optimizer->step([] { return at::Tensor(); });
    }
    EXPECT_EQ(is_marked(layer->weight), is_with_mark);
    return layer->weight.detach();
  };
  return {run(true), run(false)};
}

TEST_F(MarkedModules, OptimizersStepItAsAnyOther) {
  using Parameters = std::vector<at::Tensor>;
  const auto check = [](const char* name, const auto& make) {
    const auto [marked, plain] = trained(make);
    EXPECT_TRUE(at::equal(marked, plain)) << name;
  };
  check("SGD", [](const Parameters& p) {
    return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9));
  });
  check("AdamW", [](const Parameters& p) { return std::make_unique<torch::optim::AdamW>(p); });
  check("Adagrad", [](const Parameters& p) { return std::make_unique<torch::optim::Adagrad>(p); });
  check("RMSprop", [](const Parameters& p) { return std::make_unique<torch::optim::RMSprop>(p); });
}

TEST_F(MarkedModules, LbfgsTrainsIt) {
  const at::Tensor x = torch::randn({20, 6}), y = torch::randn({20, 4});
  torch::optim::LBFGS optimizer(layer_->parameters(), torch::optim::LBFGSOptions(0.5).max_iter(10));
  const auto loss = [&] { return torch::mse_loss(layer_(x), y); };
  const float before = loss().item<float>();
  optimizer.step([&] {
    optimizer.zero_grad();
    at::Tensor value = loss();
    value.backward();
    return value;
  });
  EXPECT_LT(loss().item<float>(), before);
  EXPECT_GT(rule_->products, 3);
}

TEST_F(MarkedModules, ForeachAndFusedOperationsSeeItsMemory) {
  const torch::NoGradGuard no_grad;
  at::Tensor weight = layer_->weight, other = torch::ones({4, 6});
  at::_foreach_copy_({weight}, {other});
  EXPECT_TRUE(at::equal(weight, other));
  at::_foreach_add_({weight, other}, 1);
  EXPECT_TRUE(at::equal(weight, torch::full({4, 6}, 2.0)));
  EXPECT_FLOAT_EQ(at::_foreach_norm({weight})[0].item<float>(), std::sqrt(4 * 24.f));
  weight.lerp_(torch::zeros({4, 6}), 0.5);
  EXPECT_TRUE(at::equal(weight, torch::ones({4, 6})));
  torch::nn::init::kaiming_uniform_(weight);
  EXPECT_TRUE(is_marked(weight));
}

TEST_F(MarkedModules, LayersMadeOfProductsApplyItAndOthersDoNot) {
  torch::nn::LSTMCell cell(6, 3);
  const auto rule = mark(cell->weight_ih);
  cell(torch::randn({2, 6}));
  EXPECT_EQ(rule->products, 1);
  torch::nn::Bilinear bilinear(2, 3, 4);
  bilinear(torch::randn({5, 2}), torch::randn({5, 3})).sum().backward();
}

TEST_F(MarkedModules, AccumulationSumsGradients) {
  const at::Tensor x = torch::ones({1, 6});
  layer_(x).sum().backward();
  layer_(x).sum().backward();
  EXPECT_TRUE(at::equal(layer_->weight.grad(), torch::full({4, 6}, 2.0)));
  EXPECT_GT(torch::nn::utils::clip_grad_norm_(layer_->parameters(), 1.0), 1);
}

}  // namespace
}  // namespace mantissa::marked_module_test
