#include "mantissa/precision/empty_init.h"

#include <gtest/gtest.h>
#include <stdexcept>
#include <thread>

#include <torch/torch.h>

#include "mantissa/precision/init.h"
#include "mantissa/precision/registry.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::empty_init_test {
namespace {

/// Whether the next random numbers are those that follow the seed.
bool is_generator_untouched() {
  const at::Tensor next = torch::rand({4});
  torch::manual_seed(7);
  return next.equal(torch::rand({4}));
}

TEST(EmptyInit, LeavesOutRandomValuesOnly) {
  torch::manual_seed(7);
  at::Tensor kept = torch::full({3}, 5.0);
  {
    const EmptyInit scope;
    kept.uniform_(0, 1);
    kept.normal_();
    torch::nn::Linear layer(8, 8);
    torch::nn::Embedding table(8, 8);
    const torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({4}));
    EXPECT_TRUE(norm->weight.eq(1).all().item<bool>() && norm->bias.eq(0).all().item<bool>());
    EXPECT_TRUE(layer->weight.requires_grad());
  }
  EXPECT_TRUE(kept.eq(5).all().item<bool>());
  EXPECT_TRUE(is_generator_untouched());
}

TEST(EmptyInit, EndsWithTheScopeAndAfterAnException) {
  const auto is_random = [] { return !torch::full({64}, 5.0).uniform_(0, 1).eq(5).any().item<bool>(); };
  EXPECT_TRUE(is_random());
  {
    const EmptyInit outer;
    { const EmptyInit inner; }
    EXPECT_FALSE(is_random()) << "the outer scope lasts";
    std::thread([&] { EXPECT_TRUE(is_random()) << "another thread"; }).join();
  }
  EXPECT_TRUE(is_random());
  try {
    const EmptyInit scope;
    throw std::runtime_error("body");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(is_random());
}

TEST(EmptyInit, IN13_InitModuleSkipsTheRandomInitialisation) {
  for (const Mode& mode : modes()) {
    const auto precision = make_precision(mode.name, at::kCPU);
    torch::manual_seed(7);
    const auto net =
        init_module(*precision, at::kCPU,
                    [] {
                      torch::nn::Sequential made(torch::nn::Linear(64, 32), torch::nn::BatchNorm1d(32));
                      return made;
                    },
                    {.empty_init = true});
    EXPECT_TRUE(is_generator_untouched()) << mode.name;
    const at::Tensor weight = net->named_parameters()["0.weight"];
    EXPECT_EQ(is_packed(weight), mode.traits.frozen_weights) << mode.name;
    if (is_packed(weight)) {
      EXPECT_TRUE(weight.dequantize().eq(0).all().item<bool>()) << mode.name;
    }
    EXPECT_TRUE(net->named_parameters()["1.weight"].eq(1).all().item<bool>()) << mode.name;
  }
}

}  // namespace
}  // namespace mantissa::empty_init_test
