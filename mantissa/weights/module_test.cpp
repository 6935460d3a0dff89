#include <sstream>

#include "mantissa/core/device.h"
#include "mantissa/weights/replace_weight.h"
#include "mantissa/weights/test_support_internal.h"

namespace mantissa::module_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class PackedModules : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(0); }
};

torch::nn::Sequential packed_net() {
  torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 4));
  replace_weight(*net, "0.weight", pack(net->named_parameters()["0.weight"]));
  return net;
}

TEST_F(PackedModules, ParametersContainThePackedWeight) {
  const auto net = packed_net();
  EXPECT_EQ(net->parameters().size(), 4u);
  EXPECT_TRUE(is_packed(net->named_parameters()["0.weight"]));
  EXPECT_FALSE(net->named_parameters()["0.weight"].requires_grad());
  EXPECT_EQ(net->parameters()[0].numel(), 8 * 16);
}

TEST_F(PackedModules, ToADtypeKeepsTheWeightPacked) {
  auto net = packed_net();
  const at::Tensor x = torch::randn({3, 8});
  const PackedDataPtr data = packed_data(net->parameters()[0]);
  net->to(at::kBFloat16);
  EXPECT_EQ(packed_data(net->parameters()[0]), data);
  EXPECT_EQ(net->parameters()[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(net->forward(x.to(at::kBFloat16)).scalar_type(), at::kBFloat16);
  net->to(at::kFloat);
  EXPECT_EQ(net->forward(x).scalar_type(), at::kFloat);
  EXPECT_THAT(error_of([&] { net->to(at::kDouble); }),
              AllOf(HasSubstr("Double"), HasSubstr("replace_weight()")));
  EXPECT_TRUE(is_packed(net->parameters()[0]));
}

TEST_F(PackedModules, ToTheMetaDeviceIsAnError) {
  auto net = packed_net();
  EXPECT_THROW(net->to(at::kMeta), c10::Error) << "libtorch refuses it for plain weights too";
  EXPECT_TRUE(is_packed(net->parameters()[0]));
}

TEST_F(PackedModules, CudaMovesTheParts) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  auto net = packed_net();
  const at::Tensor x = torch::randn({3, 8}), expected = net->forward(x);
  net->to(at::kCUDA);
  const at::Tensor weight = net->parameters()[0];
  ASSERT_TRUE(is_packed(weight));
  EXPECT_TRUE(weight.is_cuda());
  for (const auto& [name, part] : packed_data(weight)->parts()) EXPECT_TRUE(part.is_cuda()) << name;
  // The two devices sum in different orders.
  EXPECT_TRUE(at::allclose(net->forward(x.to(at::kCUDA)).cpu(), expected, 1e-4, 1e-5));
  EXPECT_THROW(torch::linear(x, weight), c10::ValueError) << "the input is elsewhere";
  net->to(at::kCPU);
  EXPECT_TRUE(at::equal(net->forward(x), expected));
}

TEST_F(PackedModules, CloneKeepsThePackedWeightAndTheTypedMember) {
  torch::nn::Linear layer(8, 4);
  replace_weight(*layer, "weight", pack(layer->weight));
  const auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(layer->clone());
  ASSERT_TRUE(copy);
  EXPECT_TRUE(is_packed(copy->weight));
  EXPECT_FALSE(copy->weight.requires_grad());
  EXPECT_TRUE(copy->bias.requires_grad());
  EXPECT_TRUE(copy->weight.is_same(copy->named_parameters()["weight"]));
  EXPECT_FALSE(copy->weight.is_same(layer->weight));
  const at::Tensor x = torch::randn({3, 8});
  EXPECT_TRUE(at::equal(copy->forward(x), layer(x)));
}

TEST_F(PackedModules, ClonesOfOtherLayersComputeTheSame) {
  const auto check = [](auto layer, const at::Tensor& x) {
    replace_weight(*layer, "weight", pack(layer->weight));
    using Impl = std::remove_reference_t<decltype(*layer)>;
    const auto copy = std::dynamic_pointer_cast<Impl>(layer->clone());
    EXPECT_TRUE(is_packed(copy->weight));
    EXPECT_TRUE(at::equal(copy->forward(x), layer->forward(x)));
  };
  check(torch::nn::Embedding(6, 3), torch::ones({2}, at::kLong));
  check(torch::nn::Conv2d(2, 3, 3), torch::randn({1, 2, 5, 5}));
  auto net = packed_net();
  const at::Tensor x = torch::randn({3, 8});
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  EXPECT_TRUE(at::equal(copy->forward(x), net->forward(x)));
}

TEST_F(PackedModules, OptimizersAndClippingSkipIt) {
  auto net = packed_net();
  const at::Tensor x = torch::randn({5, 8}), y = torch::randn({5, 4});
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
  const at::Tensor before = net->parameters()[0].dequantize();
  float first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::mse_loss(net->forward(x), y);
    loss.backward();
    EXPECT_GT(torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0), 0);
    optimizer.step();
    last = loss.item<float>();
    if (step == 0) first = last;
  }
  EXPECT_LT(last, first);
  EXPECT_TRUE(at::equal(net->parameters()[0].dequantize(), before));
  EXPECT_FALSE(net->parameters()[0].grad().defined());
}

TEST_F(PackedModules, TiedWeightsStayTied) {
  torch::nn::Embedding table(6, 8);
  torch::nn::Linear head(torch::nn::LinearOptions(8, 6).bias(false));
  head->weight = table->weight;
  replace_weight(*table, "weight", pack(table->weight));
  EXPECT_TRUE(is_packed(head->weight));
  EXPECT_TRUE(head->weight.is_same(table->weight));
  const at::Tensor hidden = table(torch::arange(6));
  EXPECT_TRUE(at::equal(head(hidden), hidden.matmul(table->weight.dequantize().t())));
}

TEST_F(PackedModules, LoadingAFileOfPlainWeightsIsRefused) {
  torch::nn::Linear plain(8, 4), layer(8, 4);
  std::stringstream file;
  torch::save(plain, file);
  replace_weight(*layer, "weight", pack(layer->weight));
  const at::Tensor before = layer->weight.dequantize();
  EXPECT_THAT(error_of([&] { torch::load(layer, file); }),
              AllOf(HasSubstr("int8 per row"), HasSubstr("replace_weight()")));
  EXPECT_TRUE(at::equal(layer->weight.dequantize(), before));
}

TEST_F(PackedModules, RecurrentLayersAreRefusedByName) {
  torch::nn::LSTM lstm(8, 4);
  torch::nn::GRU gru(8, 4);
  const at::Tensor x = torch::randn({3, 2, 8});
  for (const char* const name : {"weight_ih_l0", "weight_hh_l0"}) {
    replace_weight(*lstm, name, pack(lstm->named_parameters()[name]));
    replace_weight(*gru, name, pack(gru->named_parameters()[name]));
  }
  EXPECT_THAT(error_of([&] { lstm(x); }), AllOf(HasSubstr("lstm"), HasSubstr("dequantize(weight)")));
  EXPECT_THAT(error_of([&] { gru(x); }), AllOf(HasSubstr("gru"), HasSubstr("dequantize(weight)")));
  torch::nn::LSTMCell cell(8, 4);
  replace_weight(*cell, "weight_ih", pack(cell->weight_ih));
  EXPECT_NO_THROW(cell(x[0])) << "a cell is made of products";
}

TEST_F(PackedModules, AnAdapterBesideItTrains) {
  torch::nn::Linear base(torch::nn::LinearOptions(8, 4).bias(false));
  replace_weight(*base, "weight", pack(base->weight));
  const at::Tensor plain = base->weight.dequantize();
  at::Tensor a = torch::randn({2, 8}).set_requires_grad(true),
             b = torch::randn({4, 2}).set_requires_grad(true);
  const at::Tensor x = torch::randn({5, 8});
  const auto gradients = [&](const auto& layer) {
    const at::Tensor loss = (layer(x) + x.matmul(a.t()).matmul(b.t())).pow(2).sum();
    return torch::autograd::grad({loss}, {a, b});
  };
  const auto packed = gradients([&](const at::Tensor& t) { return base(t); });
  const auto expected = gradients([&](const at::Tensor& t) { return t.matmul(plain.t()); });
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::allclose(packed[i], expected[i], 1e-5, 1e-5));
}

}  // namespace
}  // namespace mantissa::module_test
