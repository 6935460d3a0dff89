#include "mantissa/quant/packed_int8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/quant/int8_state.h"
#include "mantissa/quant/linear_int8.h"
#include "mantissa/quant/quant_state.h"
#include "mantissa/quant/test_support_internal.h"
#include "mantissa/weights/named_parts.h"
#include "mantissa/weights/packed_weight.h"
#include "mantissa/weights/replace_weight.h"

namespace mantissa::packed_int8_test {
namespace {

using quant::recorded;
using quant::Tensors;
using test::same_bits;
using testing::AllOf;
using testing::HasSubstr;

torch::nn::Linear packed_linear(const at::Tensor& weight, double threshold = 0) {
  torch::nn::Linear layer(weight.size(1), weight.size(0));
  replace_weight(*layer, "weight", make_packed_weight(pack_int8(weight, threshold, "'weight'")));
  return layer;
}

Tensors weights_of(const torch::nn::Module& module) {
  Tensors all;
  for (const auto& item : module.named_parameters()) all.emplace(item.key(), item.value());
  return all;
}

TEST(PackedInt8, ALinearComputesWithIt) {
  torch::manual_seed(0);
  const at::Tensor weight = at::randn({24, 40});
  for (const double threshold : {0.0, 1.5}) {
    torch::nn::Linear layer = packed_linear(weight, threshold);
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      const at::Tensor x = at::randn({6, 40}).to(dtype).set_requires_grad(true);
      const at::Tensor y = layer(x);
      EXPECT_TRUE(same_bits(y, linear_int8(x, quantize_int8(weight), layer->bias, threshold)));
      y.sum().backward();
      const at::Tensor want = at::ones({6, 24}).matmul(dequantize_int8(quantize_int8(weight)));
      EXPECT_TRUE(at::allclose(x.grad().to(at::kFloat), want, 1e-2, 1e-2)) << dtype;
    }
  }
}

TEST(PackedInt8, Float64IsComputedThroughFloat32) {
  torch::manual_seed(0);
  torch::nn::Linear layer = packed_linear(at::randn({24, 40}));
  const at::Tensor x = at::randn({3, 40}, at::kDouble).set_requires_grad(true);
  const at::Tensor y = layer(x);
  EXPECT_EQ(y.scalar_type(), at::kDouble);
  EXPECT_TRUE(same_bits(y, layer(x.to(at::kFloat)).to(at::kDouble)));
  y.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kDouble);
}

TEST(PackedInt8, RowsOfATableEqualThoseOfTheWholeWeight) {
  torch::manual_seed(0);
  const at::Tensor rows = torch::tensor({2, 0, 2, 1}, at::kLong);
  for (const auto& sizes :
       std::vector<std::vector<int64_t>>{{7, 64}, {9, 5}, {3, 1}, {300, 96}, {4, 3, 5}, {3, 0}})
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
      SCOPED_TRACE(testing::Message() << at::IntArrayRef(sizes) << " " << dtype);
      const PackedDataPtr data = pack_int8(at::randn(sizes), 0, "w");
      const at::Tensor whole = data->dequantize(dtype);
      for (const at::Tensor& some :
           {rows, rows.narrow(0, 1, 1), rows.narrow(0, 0, 0), rows.slice(0, 0, 4, 2)})
        EXPECT_TRUE(same_bits(data->dequantize_rows(some, dtype), whole.index_select(0, some)))
            << some.sizes();
      for (const int64_t bad : {int64_t{-1}, sizes[0]})
        EXPECT_THROW(data->dequantize_rows(torch::tensor({int64_t{0}, bad}), dtype), c10::Error) << bad;
    }
  const PackedDataPtr table = pack_int8(at::ones({4, 64}), 0, "w");
  EXPECT_THROW(table->dequantize_rows(torch::tensor({1}).to(at::kMeta), at::kFloat), c10::ValueError);
}

TEST(PackedInt8, AnEmbeddingAndAConvolutionComputeWithIt) {
  torch::manual_seed(0);
  torch::nn::Embedding table(50, 24);
  const at::Tensor rows = at::randn({50, 24}), indices = torch::tensor({{1, 49}, {1, 0}});
  replace_weight(*table, "weight", make_packed_weight(pack_int8(rows, 0, "w")));
  EXPECT_TRUE(same_bits(table(indices), torch::embedding(dequantize_int8(quantize_int8(rows)), indices)));
  EXPECT_THROW(table(torch::tensor({50})), c10::Error);
  EXPECT_THROW(table(torch::tensor({-1})), c10::Error);

  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 8, 3));
  const PackedDataPtr kernel = pack_int8(at::randn({8, 3, 3, 3}), 0, "w");
  EXPECT_EQ(kernel->sizes(), (std::vector<int64_t>{8, 3, 3, 3}));
  EXPECT_EQ(kernel->parts().at("SCB").sizes(), std::vector<int64_t>{8}) << "one scale for each channel";
  replace_weight(*conv, "weight", make_packed_weight(kernel));
  const at::Tensor image = at::randn({2, 3, 6, 6});
  EXPECT_TRUE(same_bits(conv(image), torch::conv2d(image, kernel->dequantize(at::kFloat), conv->bias)));
  // Its state has the weight's shape, and loads again.
  Tensors stored = named_parts(weights_of(*conv));
  EXPECT_EQ(stored.at("weight").sizes(), (std::vector<int64_t>{8, 3, 3, 3}));
  stored["weight"] = stored["weight"].clone().fill_(7);
  PartsLoader(*conv, stored).load();
  EXPECT_EQ(conv->weight.sizes(), (std::vector<int64_t>{8, 3, 3, 3}));
  EXPECT_TRUE(packed_data(conv->weight)->parts().at("").eq(7).all().item<bool>());
}

TEST(PackedInt8, Q32_AModelsPartsAreBitsandbytesStateDict) {
  const Tensors saved = recorded("state_linear8bit");
  const QuantizedInt8 want = unpack_state_int8(saved, "layer.weight");
  torch::nn::Sequential net;
  net->push_back("layer", packed_linear(at::ones(want.codes.sizes()), 6));
  Tensors stored = saved;
  const at::Tensor bias = stored.at("layer.bias");
  PartsLoader(*net, stored).load();
  ASSERT_EQ(stored.size(), 1U) << "the bias is left";
  const Tensors got = named_parts(weights_of(*net));
  ASSERT_EQ(got.size(), 4U);
  EXPECT_TRUE(same_bits(got.at("layer.weight"), saved.at("layer.weight")));
  EXPECT_TRUE(same_bits(got.at("layer.SCB"), saved.at("layer.SCB").view({-1})));
  EXPECT_TRUE(same_bits(got.at("layer.weight_format"), at::zeros({}, at::kByte)));
  EXPECT_FALSE(got.at("layer.weight").is_alias_of(saved.at("layer.weight")));
}

TEST(PackedInt8, Q57_LoadsPlainValues) {
  torch::manual_seed(0);
  torch::nn::Linear layer = packed_linear(at::ones({24, 40}), 6);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor values = at::randn({24, 40}).to(dtype);
    Tensors stored{{"weight", values}};
    PartsLoader(*layer, stored).load();
    const QuantizedInt8 want = quantize_int8(values.to(at::kHalf));
    EXPECT_TRUE(same_bits(find_int8(*packed_data(layer->weight))->codes, want.codes));
    EXPECT_TRUE(same_bits(find_int8(*packed_data(layer->weight))->scales, want.scales));
  }
}

TEST(PackedInt8, CodesWithoutAScaleForEachRowBecomeNoWeight) {
  QuantizedInt8 torn = quantize_int8(at::ones({4, 8}));
  torn.scales = at::ones({3});
  EXPECT_THAT(error_of([&] { make_packed_int8(torn, 6); }),
              HasSubstr("make_packed_int8: codes of [4, 8] have scales of [3]"));
}

TEST(PackedInt8, UnfittingStatesChangeNothing) {
  torch::nn::Linear layer = packed_linear(at::ones({24, 40}));
  const at::Tensor before = layer->weight.dequantize();
  const auto loading = [&](Tensors stored) {
    const std::string error = error_of([&] { PartsLoader(*layer, stored).load(); });
    EXPECT_TRUE(same_bits(layer->weight.dequantize(), before));
    return error;
  };
  const auto state = [](const at::Tensor& values) { return pack_state(quantize_int8(values), "weight"); };
  EXPECT_THAT(loading({}), HasSubstr("'weight' is missing"));
  EXPECT_THAT(loading(state(at::ones({40, 24}))), HasSubstr("has shape [40, 24]"));
  EXPECT_THAT(loading(pack_state(quantize_4bit(at::ones({24, 40})), "weight")),
              AllOf(HasSubstr("'weight' is saved as nf4, blocks of 64, and the model has int8"),
                    HasSubstr("choose the mode nf4 with blocksize 64")));
  Tensors torn = state(at::ones({24, 40}));
  torn.erase("SCB");
  EXPECT_THAT(loading(torn), HasSubstr("no tensor 'SCB'"));
  torn = state(at::ones({24, 40}));
  torn["weight_format"] = at::full({}, 1, at::kByte);
  EXPECT_THAT(loading(torn), HasSubstr("'weight_format' is not 0"));
  EXPECT_THAT(loading({{"weight", at::full({24, 40}, 1e5)}}),
              HasSubstr("'weight' has values that float16 cannot hold"));
}

TEST(PackedInt8, WrongArgumentsAreRefused) {
  const QuantizedInt8 codes = quantize_int8(at::ones({4, 6}));
  EXPECT_THAT(error_of([&] { make_packed_int8(codes, -1); }), HasSubstr("threshold is -1"));
  EXPECT_THAT(error_of([&] { make_packed_int8(codes, 0, {4, 7}); }), HasSubstr("[4, 7]"));
  EXPECT_THAT(error_of([&] {
                make_packed_int8(int8_vectorwise_quant(at::ones({4, 6}), 0.5));
              }),
              HasSubstr("6 outlier columns"));
  EXPECT_THAT(error_of([] { pack_int8(at::ones({4}), 0, "'fc.weight'"); }), HasSubstr("'fc.weight' is no"));
  EXPECT_THAT(error_of([] { pack_int8({}, 0, "'fc.weight'"); }), HasSubstr("undefined"));
  PackedData::Parts bad = make_packed_int8(codes)->parts();
  bad["SCB"] = -bad["SCB"];
  EXPECT_THAT(error_of([&] { make_packed_int8(codes)->with_parts(bad); }), HasSubstr("negative"));
}

/// The graph of a product that nobody differentiates would keep codes and inputs alive.
TEST(PackedInt8, RecordsNothingWithoutGradients) {
  const QuantizedInt8 codes = quantize_int8(at::ones({4, 6}));
  const at::Tensor x = at::ones({2, 6}), leaf = at::ones({2, 6}).set_requires_grad(true);
  EXPECT_FALSE(linear_int8(x, codes).grad_fn());
  EXPECT_TRUE(linear_int8(leaf, codes).grad_fn());
  EXPECT_FALSE(linear_int8_training(x, at::ones({4, 6})).grad_fn());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(linear_int8(leaf, codes).grad_fn());
  EXPECT_FALSE(linear_int8_training(leaf, at::ones({4, 6}).set_requires_grad(true)).grad_fn());
}

}  // namespace
}  // namespace mantissa::packed_int8_test
