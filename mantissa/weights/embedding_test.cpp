#include "mantissa/weights/replace_weight.h"
#include "mantissa/weights/test_support_internal.h"

namespace mantissa::embedding_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

namespace F = torch::nn::functional;

class PackedTables : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(0); }
};

at::Tensor long_tensor(const std::vector<int64_t>& values) { return torch::tensor(values, at::kLong); }

TEST_F(PackedTables, EmbeddingLooksUpRows) {
  torch::nn::Embedding table(6, 3);
  replace_weight(*table, "weight", pack(table->weight));
  const at::Tensor plain = table->weight.dequantize(), indices = long_tensor({5, 0, 5, 2}).view({2, 2});
  EXPECT_TRUE(at::equal(table(indices), torch::embedding(plain, indices)));
  EXPECT_TRUE(at::equal(table(indices.to(at::kInt)), torch::embedding(plain, indices)));
  EXPECT_EQ(table(torch::empty({2, 0}, at::kLong)).sizes(), at::IntArrayRef({2, 0, 3}));
  EXPECT_EQ(table(torch::zeros({}, at::kLong)).sizes(), at::IntArrayRef({3}));
  table->to(at::kBFloat16);
  EXPECT_TRUE(at::equal(table(indices), torch::embedding(plain.to(at::kBFloat16), indices)));
}

TEST_F(PackedTables, EmbeddingErrors) {
  const at::Tensor table = pack(torch::randn({6, 3}));
  EXPECT_THROW(torch::embedding(table, long_tensor({6})), c10::Error);
  EXPECT_THROW(torch::embedding(table, long_tensor({-1})), c10::Error);
  EXPECT_THROW(torch::embedding(table, torch::ones({2})), c10::TypeError);
  EXPECT_THROW(torch::embedding(table.t(), long_tensor({0})), c10::ValueError);
  EXPECT_THAT(error_of([&] { torch::embedding(torch::ones({2, 3}), table); }), HasSubstr("dequantize"));
  torch::nn::Embedding limited(torch::nn::EmbeddingOptions(6, 3).max_norm(1.0));
  replace_weight(*limited, "weight", table);
  EXPECT_THAT(error_of([&] { limited(long_tensor({0})); }),
              AllOf(HasSubstr("embedding_renorm_"), HasSubstr("replace_weight")));
}

TEST_F(PackedTables, EmbeddingBagsSumMeanAndMax) {
  const at::Tensor table = pack(torch::randn({6, 3})), plain = table.dequantize();
  const at::Tensor indices = long_tensor({1, 5, 5, 0, 2, 4}), offsets = long_tensor({0, 2, 2, 5});
  for (const int64_t mode : {0, 1, 2}) {
    const auto bags = [&](const at::Tensor& w, std::optional<int64_t> padding) {
      return std::get<0>(torch::embedding_bag(w, indices, offsets, false, mode, false, {}, false, padding));
    };
    for (const std::optional<int64_t> padding : {std::optional<int64_t>(), {5}, {-1}, {3}})
      EXPECT_TRUE(at::equal(bags(table, padding), bags(plain, padding))) << mode;
    EXPECT_TRUE(at::equal(std::get<0>(torch::embedding_bag(table, indices, offsets, false, mode)),
                          std::get<0>(torch::embedding_bag(plain, indices, offsets, false, mode))));
    EXPECT_THROW(bags(table, 6), c10::ValueError);
  }
}

TEST_F(PackedTables, SampleWeightsOfABagGetGradients) {
  const at::Tensor table = pack(torch::randn({6, 3})), indices = long_tensor({1, 5, 5}),
                   offsets = long_tensor({0, 2});
  const auto gradient = [&](const at::Tensor& w) {
    const at::Tensor per_sample = torch::ones({3}).set_requires_grad(true);
    std::get<0>(torch::embedding_bag(w, indices, offsets, false, 0, false, per_sample))
        .pow(2)
        .sum()
        .backward();
    return per_sample.grad();
  };
  EXPECT_TRUE(at::allclose(gradient(table), gradient(table.dequantize())));
}

/// Expects the results and gradients of a layer to be those of the dequantized weight.
template <typename Layer>
void expect_convolves(Layer layer, const at::Tensor& input) {
  const auto pass = [&] {
    layer->zero_grad();
    const at::Tensor x = input.clone().set_requires_grad(true);
    const at::Tensor y = layer(x);
    y.pow(2).sum().backward();
    return std::vector<at::Tensor>{y, x.grad(),
                                   layer->bias.defined() ? layer->bias.grad().clone() : torch::zeros({1})};
  };
  replace_weight(*layer, "weight", pack(layer->weight));
  const auto packed = pass();
  {
    const c10::InferenceMode mode;
    EXPECT_TRUE(at::equal(layer(input), packed[0]));
  }
  replace_weight(*layer, "weight", layer->weight.dequantize());
  const auto plain = pass();
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(at::equal(packed[i], plain[i])) << i;
}

TEST_F(PackedTables, ConvolutionsEqualThoseOfTheDequantizedWeight) {
  expect_convolves(torch::nn::Conv1d(torch::nn::Conv1dOptions(4, 6, 3).padding(1)), torch::randn({2, 4, 9}));
  expect_convolves(torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 6, 3).stride(2).dilation(2).bias(false)),
                   torch::randn({2, 4, 9, 9}));
  expect_convolves(torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 6, 3).groups(2).padding(torch::kSame)),
                   torch::randn({2, 4, 9, 9}));
  expect_convolves(torch::nn::Conv2d(4, 6, 3), torch::randn({4, 9, 9}));
  expect_convolves(torch::nn::Conv3d(2, 3, 2), torch::randn({1, 2, 4, 4, 4}));
  expect_convolves(torch::nn::ConvTranspose2d(
                       torch::nn::ConvTranspose2dOptions(4, 6, 3).stride(2).output_padding(1).groups(2)),
                   torch::randn({2, 4, 5, 5}));
}

TEST_F(PackedTables, ConvolutionsInAnotherDtype) {
  torch::nn::Conv2d layer(2, 3, 3);
  replace_weight(*layer, "weight", pack(layer->weight));
  const at::Tensor weight = layer->weight.detach();
  layer->to(at::kBFloat16);
  const at::Tensor x = torch::randn({1, 2, 5, 5});
  EXPECT_EQ(layer(x.to(at::kBFloat16)).scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(torch::convolution(x, layer->weight, {}, 1, 0, 1, false, 0, 1),
                        torch::conv2d(x, weight.dequantize())))
      << "the nominal dtype does not matter";
  EXPECT_THAT(error_of([&] { torch::convolution(x.to(at::kLong), weight, {}, 1, 0, 1, false, 0, 1); }),
              AllOf(HasSubstr("convolution"), HasSubstr("Long")));
  EXPECT_THROW(torch::conv2d(layer->weight, torch::ones({1, 2, 2, 2})), c10::NotImplementedError);
}

}  // namespace
}  // namespace mantissa::embedding_test
