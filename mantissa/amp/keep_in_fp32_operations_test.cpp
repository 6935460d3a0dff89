// Which operations run in float32 because one of their arguments is a kept weight.
#include <optional>
#include <tuple>
#include <vector>

#include <torch/library.h>

#include "mantissa/amp/keep_in_fp32.h"
#include "mantissa/amp/test_support_internal.h"

namespace mantissa::keep_in_fp32_operations_test {
namespace {

class KeptOperations : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(0); }
};

at::Tensor low(const at::Tensor& t) { return t.to(at::kBFloat16); }

// torch::nn::Linear multiplies by a transpose of its weight, with a different operation for each case.
TEST_F(KeptOperations, LinearOfEveryShapeWithAndWithoutBias) {
  for (const bool bias : {true, false}) {
    torch::nn::Linear layer(torch::nn::LinearOptions(8, 4).bias(bias));
    keep_in_fp32(*layer);
    for (const auto& shape :
         std::vector<std::vector<int64_t>>{{8}, {3, 8}, {2, 3, 8}, {2, 2, 3, 8}, {0, 8}}) {
      const auto x = low(torch::randn(shape));
      const auto want = layer(x.to(at::kFloat));
      const Autocast region(at::kCPU);
      const auto y = layer(x), linear = at::linear(x, layer->weight, layer->bias);
      EXPECT_EQ(y.scalar_type(), at::kFloat) << x.sizes();
      EXPECT_TRUE(at::equal(y, want)) << x.sizes();
      EXPECT_EQ(linear.scalar_type(), at::kFloat) << x.sizes();
    }
  }
}

TEST_F(KeptOperations, ProductsWrittenByHandWithTheWeightAndItsViews) {
  torch::nn::Linear layer(4, 4);
  keep_in_fp32(*layer);
  const auto w = layer->weight, x = low(torch::randn({2, 4, 4}));
  const Autocast region(at::kCPU);
  for (const at::Tensor& y : {at::matmul(x, w.t()), x[0].mm(w.t()), at::addmm(layer->bias, x[0], w),
                              at::bmm(x, w.expand({2, 4, 4})), at::einsum("bij,kj->bik", {x, w}),
                              at::matmul(x, w.slice(0, 1, 3).t()), at::matmul(x, w.detach()),
                              at::matmul(x, w.view({2, 2, 4})[1].t()), at::cat({x[0], w})})
    EXPECT_EQ(y.scalar_type(), at::kFloat);
  // A tensor that is computed from the weight is a different tensor.
  EXPECT_EQ(at::matmul(x, w * 2).scalar_type(), at::kBFloat16);
  EXPECT_EQ(at::matmul(x, w.clone()).scalar_type(), at::kBFloat16);
}

TEST_F(KeptOperations, ConvolutionsOfEveryKind) {
  const auto check = [](auto module, const at::Tensor& x) {
    keep_in_fp32(*module);
    const auto want = module(low(x).to(at::kFloat));
    const Autocast region(at::kCPU);
    const auto y = module(low(x));
    EXPECT_EQ(y.scalar_type(), at::kFloat) << module->name();
    EXPECT_TRUE(at::equal(y, want)) << module->name();
  };
  namespace nn = torch::nn;
  check(nn::Conv1d(2, 3, 3), torch::randn({1, 2, 8}));
  check(nn::Conv2d(2, 3, 3), torch::randn({1, 2, 8, 8}));
  check(nn::Conv2d(nn::Conv2dOptions(2, 3, 3).padding(torch::kSame)), torch::randn({1, 2, 8, 8}));
  check(nn::Conv2d(nn::Conv2dOptions(2, 3, 3).padding(1).padding_mode(torch::kReflect)),
        torch::randn({1, 2, 8, 8}));
  check(nn::Conv3d(2, 3, 3), torch::randn({1, 2, 5, 5, 5}));
  check(nn::ConvTranspose1d(2, 3, 3), torch::randn({1, 2, 8}));
  check(nn::ConvTranspose2d(2, 3, 3), torch::randn({1, 2, 8, 8}));
  check(nn::ConvTranspose3d(2, 3, 3), torch::randn({1, 2, 5, 5, 5}));
}

TEST_F(KeptOperations, NormsEmbeddingsAndOtherLayersWithWeights) {
  const auto check = [](auto module, const at::Tensor& x) {
    keep_in_fp32(*module);
    const auto want = module(x.is_floating_point() ? x.to(at::kFloat) : x);
    const Autocast region(at::kCPU);
    const auto y = module(x);
    EXPECT_EQ(y.scalar_type(), at::kFloat) << module->name();
    EXPECT_TRUE(at::equal(y, want)) << module->name();
  };
  namespace nn = torch::nn;
  check(nn::LayerNorm(nn::LayerNormOptions({8})), low(torch::randn({3, 8})));
  check(nn::GroupNorm(2, 4), low(torch::randn({3, 4, 8})));
  check(nn::InstanceNorm1d(nn::InstanceNorm1dOptions(4).affine(true)), low(torch::randn({3, 4, 8})));
  check(nn::BatchNorm1d(8), low(torch::randn({3, 8})));
  check(nn::BatchNorm1d(nn::BatchNorm1dOptions(8).affine(false)),
        low(torch::randn({3, 8})));  // recognised by its buffers
  check(nn::PReLU(), low(torch::randn({3, 8})));
  check(nn::Embedding(5, 8), torch::tensor({1, 4}));
  check(nn::EmbeddingBag(5, 8), torch::tensor({{1, 4}, {0, 2}}));
}

TEST_F(KeptOperations, BatchNormUpdatesItsRunningStatistics) {
  torch::nn::BatchNorm1d norm(4);
  keep_in_fp32(*norm);
  const auto x = torch::randn({6, 4}) + 3;
  const Autocast region(at::kCPU);
  norm(low(x));
  EXPECT_GT(norm->running_mean.min().item<float>(), 0.1f);
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 1);
}

TEST_F(KeptOperations, RecurrentLayersRunWholeInFloat32) {
  const auto x = torch::randn({5, 2, 4});
  const auto check = [&](auto module) {
    keep_in_fp32(*module);
    const auto [want, want_state] = module(low(x).to(at::kFloat));
    const Autocast region(at::kCPU);
    const auto [y, state] = module(low(x));
    EXPECT_EQ(y.scalar_type(), at::kFloat) << module->name();
    EXPECT_TRUE(at::equal(y, want)) << module->name();
  };
  check(torch::nn::GRU(4, 3));
  check(torch::nn::RNN(4, 3));
  check(torch::nn::LSTM(4, 3));
  torch::nn::LSTMCell cell(4, 3);
  keep_in_fp32(*cell);
  const Autocast region(at::kCPU);
  EXPECT_EQ(std::get<0>(cell(low(x[0]))).scalar_type(), at::kFloat);
}

// The projections have weights. The operations between them have none; the documentation says that they are
// not reached.
TEST_F(KeptOperations, AttentionsProjectionsAreFloat32) {
  torch::nn::MultiheadAttention attention(8, 2);
  const auto x = torch::randn({5, 1, 8});
  keep_in_fp32(*attention);
  {
    const Autocast region(at::kCPU);
    const auto [y, weights] = attention(x, x, x);
    EXPECT_EQ(y.scalar_type(), at::kFloat);
    EXPECT_EQ(at::linear(low(x), attention->in_proj_weight.slice(0, 0, 8)).scalar_type(), at::kFloat);
    // As a float32 island, the whole layer runs in float32.
    const auto [exact, exact_weights] =
        in_fp32([&](const at::Tensor& t) { return attention(t, t, t); }, low(x));
    EXPECT_EQ(exact_weights.scalar_type(), at::kFloat);
    const Autocast off(at::kCPU, {.enabled = false});
    const auto same = low(x).to(at::kFloat);
    EXPECT_TRUE(at::equal(exact, std::get<0>(attention(same, same, same))));
  }
}

TEST_F(KeptOperations, AnOperationThatAutocastLeavesAloneKeepsItsDtype) {
  torch::nn::Linear layer(8, 4);
  layer->to(at::kBFloat16);
  keep_in_fp32(*layer);
  const Autocast region(at::kCPU);
  EXPECT_EQ((layer->weight + 1).scalar_type(), at::kBFloat16);
}

at::Tensor twice(const at::Tensor& x) { return x + x; }
at::Tensor twice_in_bf16(const at::Tensor& x) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  return twice(x.to(at::kBFloat16));
}

TEST_F(KeptOperations, AProgramsOwnOperationDoesWhatItsOwnAutocastKernelDoes) {
  torch::Library library(torch::Library::FRAGMENT, "mantissa_amp_test", std::nullopt, __FILE__, __LINE__);
  library.def("twice(Tensor x) -> Tensor", twice);
  library.impl("twice", c10::DispatchKey::AutocastCPU, twice_in_bf16);
  torch::nn::Linear layer(8, 4);
  keep_in_fp32(*layer);
  const Autocast region(at::kCPU);
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("mantissa_amp_test::twice", "");
  EXPECT_EQ(op.typed<decltype(twice)>().call(layer->weight).scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace mantissa::keep_in_fp32_operations_test
