#include "mantissa/precision/channels_last.h"

#include <gtest/gtest.h>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/tree.h"

namespace mantissa::channels_last_test {
namespace {

constexpr auto kLast = at::MemoryFormat::ChannelsLast, kLast3d = at::MemoryFormat::ChannelsLast3d;

torch::nn::Sequential net_of_all_kinds() {
  return torch::nn::Sequential(torch::nn::Conv2d(3, 8, 3), torch::nn::BatchNorm2d(8),
                               torch::nn::Conv2d(8, 4, 1), torch::nn::Flatten(),
                               torch::nn::Linear(4 * 4 * 4, 2));
}

TEST(ChannelsLast, ComputesWhatAnotherLayoutComputes) {
  torch::manual_seed(1);
  auto net = net_of_all_kinds();
  const at::Tensor images = torch::rand({2, 3, 6, 6});
  const at::Tensor want = net->forward(images);
  set_channels_last(*net);
  const at::Tensor reordered = channels_last(images);
  EXPECT_TRUE(reordered.is_contiguous(kLast));
  EXPECT_TRUE(reordered.equal(images));
  EXPECT_TRUE(net->forward(reordered).allclose(want, 1e-5, 1e-6));  // the sums run in another order
}

TEST(ChannelsLast, TheStridesAreThoseOfTorchsTo) {
  auto net = net_of_all_kinds();
  net->push_back(torch::nn::Conv3d(2, 2, 3));
  net->register_buffer("grid", torch::rand({1, 2, 3, 3}));
  std::vector<at::Tensor> before;
  for (const at::Tensor& parameter : net->parameters()) before.push_back(parameter.detach().clone());
  set_channels_last(*net);
  const std::vector<at::Tensor> after = net->parameters();
  for (size_t i = 0; i < after.size(); ++i) {
    at::Tensor want = before[i];
    if (want.dim() == 4) want = want.to(want.options(), false, false, kLast);
    if (want.dim() == 5) want = want.to(want.options(), false, false, kLast3d);
    EXPECT_EQ(after[i].strides(), want.strides()) << after[i].sizes();
    EXPECT_TRUE(after[i].equal(want));
  }
  EXPECT_TRUE(net->named_buffers()["grid"].is_contiguous(kLast));
}

TEST(ChannelsLast, OptimizersAndGradientsFollow) {
  torch::nn::Conv2d net(2, 2, 3);
  torch::optim::SGD optimizer(net->parameters(), 1.0);
  net->weight.mutable_grad() = torch::ones_like(net->weight);
  set_channels_last(*net);
  const at::Tensor before = net->weight.detach().clone();
  EXPECT_TRUE(net->weight.grad().is_contiguous(kLast));
  optimizer.step();
  EXPECT_TRUE(net->weight.equal(before - 1));
  EXPECT_TRUE(net->weight.is_contiguous(kLast));
}

TEST(ChannelsLast, OtherTensorsStayAsTheyAre) {
  for (const at::Tensor& tensor :
       {torch::rand({}), torch::rand({3, 2}), torch::rand({2, 2, 2}), torch::rand({2, 2, 2, 2, 2, 2}),
        torch::eye(2).to_sparse(), torch::rand({2, 2, 2, 2}).to_sparse(),
        torch::rand({2, 3, 2, 2}).contiguous(kLast)})
    EXPECT_TRUE(channels_last(tensor).is_same(tensor));
  EXPECT_TRUE(channels_last(torch::rand({2, 3, 2, 2, 2})).is_contiguous(kLast3d));
}

}  // namespace
}  // namespace mantissa::channels_last_test
