#include "mantissa/precision/quantize_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/kernels/test_support_internal.h"
#include "mantissa/quant/packed_4bit.h"
#include "mantissa/quant/packed_int8.h"
#include "mantissa/weights/packed_weight.h"
#include "mantissa/weights/replace_weight.h"
#include "mantissa/weights/test_support_internal.h"

namespace mantissa::quantize_module_test {
namespace {

using test::same_bits;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

using Tensors = std::map<std::string, at::Tensor>;

/// A network of typed members, as a user writes it.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("table", table);
    register_module("conv", conv);
    register_module("body", body);
    register_module("norm", norm);
    register_module("lm_head", lm_head);
    register_module("lm_head2", lm_head2);
  }
  at::Tensor forward(const at::Tensor& indices) {
    const at::Tensor x = conv(table(indices).transpose(1, 2)).transpose(1, 2);
    const at::Tensor y = norm(body->forward(x));
    return lm_head(y) + lm_head2(y);
  }
  torch::nn::Embedding table{11, 16};
  torch::nn::Conv1d conv{torch::nn::Conv1dOptions(16, 16, 3).padding(1)};
  torch::nn::Sequential body{torch::nn::Linear(16, 32), torch::nn::ReLU(), torch::nn::Linear(32, 16)};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({16})};
  torch::nn::Linear lm_head{16, 4}, lm_head2{16, 4};
};
TORCH_MODULE(Net);

Tensors weights_of(const torch::nn::Module& module) {
  Tensors all;
  for (const auto& item : module.named_parameters()) all.emplace(item.key(), item.value());
  return all;
}

std::vector<std::string> packed_names(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& [name, weight] : weights_of(module))
    if (is_packed(weight)) names.push_back(name);
  return names;
}

at::Tensor indices() { return torch::tensor({{0, 3, 10}, {1, 1, 2}}); }

class QuantizeModule : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(0); }
};

TEST_F(QuantizeModule, AWeightInAFormatOfTheUsersOwnStaysAsItIs) {
  Net net;
  replace_weight(net->lm_head->weight, mantissa::pack(net->lm_head->weight));
  quantize_module(*net, {}, "here");
  EXPECT_EQ(packed_data(net->lm_head->weight)->description(), "int8 per row");
  EXPECT_NE(find_4bit(*packed_data(net->lm_head2->weight)), nullptr);
}

TEST_F(QuantizeModule, AWeightThatAutogradComputedIsRefusedByItsName) {
  torch::nn::Linear first(16, 4), second(16, 4);
  second->weight = second->weight * 1;
  torch::nn::Sequential net(first, second);
  EXPECT_THAT(error_of([&] { quantize_module(*net, {}, "here"); }),
              HasSubstr("quantize_module: autograd computed '1.weight'"));
  EXPECT_FALSE(is_packed(first->weight));
}

TEST_F(QuantizeModule, ReplacesTheWeightsOfAllLinearLayers) {
  Net net;
  const at::Tensor before = net->forward(indices());
  const std::vector<at::Tensor> parameters = net->parameters();
  quantize_module(*net, {}, "here");
  EXPECT_THAT(packed_names(*net),
              ElementsAre("body.0.weight", "body.2.weight", "lm_head.weight", "lm_head2.weight"));
  EXPECT_TRUE(is_packed(net->lm_head->weight)) << "the typed member";
  EXPECT_THAT(quantized_formats(*net), ElementsAre("nf4, blocks of 64"));
  for (size_t i = 0; i < parameters.size(); ++i)
    EXPECT_TRUE(net->parameters()[i].is_same(parameters[i])) << "an optimizer made earlier stays valid";
  const at::Tensor after = net->forward(indices());
  EXPECT_FALSE(same_bits(after, before));
  EXPECT_TRUE(at::allclose(after, before, 0.5, 0.5));
  after.sum().backward();
  EXPECT_TRUE(net->table->weight.grad().defined() && net->lm_head->bias.grad().defined());
  EXPECT_FALSE(net->lm_head->weight.requires_grad());
}

TEST_F(QuantizeModule, Q53_EachFormatHasItsOptions) {
  const auto weight = [](const QuantizeModuleOptions& options) {
    torch::nn::Linear layer(256, 64);
    quantize_module(*layer, options, "here");
    return packed_data(layer->weight);
  };
  EXPECT_FALSE(find_4bit(*weight({}))->is_nested());
  EXPECT_TRUE(find_4bit(*weight({.compress_statistics = true}))->is_nested());
  EXPECT_EQ(find_4bit(*weight({.format = Format::kFP4}))->format, Format::kFP4);
  EXPECT_EQ(find_4bit(*weight({.blocksize = 128}))->blocksize, 128);
  EXPECT_TRUE(find_int8(*weight({.format = Format::kInt8})));
}

TEST_F(QuantizeModule, Q60_TheBytesAreThoseOfTheWeightRoundedToFloat16) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    torch::nn::Linear layer(96, 40), eight(96, 40);
    layer->to(dtype);
    eight->to(dtype);
    const at::Tensor w = layer->weight.detach().clone(), v = eight->weight.detach().clone();
    quantize_module(*layer, {.compress_statistics = true}, "here");
    quantize_module(*eight, {.format = Format::kInt8}, "here");
    const Quantized4Bit want = quantize_4bit(w.to(at::kHalf), {.compress_statistics = true});
    const Quantized4Bit& got = *find_4bit(*packed_data(layer->weight));
    EXPECT_TRUE(same_bits(got.codes, want.codes) && same_bits(got.absmax, want.absmax)) << dtype;
    EXPECT_TRUE(
        same_bits(find_int8(*packed_data(eight->weight))->codes, quantize_int8(v.to(at::kHalf)).codes))
        << dtype;
    EXPECT_EQ(layer->weight.scalar_type(), dtype == at::kDouble ? at::kFloat : dtype);
  }
}

TEST_F(QuantizeModule, Q55_NamesAreIgnoredByPrefix) {
  Net net;
  quantize_module(*net, {.ignore_modules = {"lm_head"}}, "here");
  EXPECT_THAT(packed_names(*net), ElementsAre("body.0.weight", "body.2.weight"));
  EXPECT_EQ(net->lm_head2->weight.scalar_type(), at::kFloat);
  EXPECT_TRUE(net->lm_head2->weight.requires_grad());
  Net other;
  quantize_module(*other, {.ignore_modules = {"body.2", "lm_head2"}}, "here");
  EXPECT_THAT(packed_names(*other), ElementsAre("body.0.weight", "lm_head.weight"));
}

TEST_F(QuantizeModule, EmbeddingsAndConvolutionsAreQuantizedOnRequest) {
  for (const Format format : {Format::kFP4, Format::kInt8}) {
    Net net;
    const at::Tensor before = net->forward(indices());
    quantize_module(*net, {.format = format, .embeddings = true, .convolutions = true}, "here");
    EXPECT_THAT(packed_names(*net), ElementsAre("body.0.weight", "body.2.weight", "conv.weight",
                                                "lm_head.weight", "lm_head2.weight", "table.weight"));
    const at::Tensor after = net->forward(indices());
    EXPECT_FALSE(same_bits(after, before));
    EXPECT_TRUE(at::allclose(after, before, 1.0, 1.0));
    after.sum().backward();
    EXPECT_TRUE(net->conv->bias.grad().defined());
    EXPECT_FALSE(net->conv->weight.grad().defined());
  }
}

TEST_F(QuantizeModule, ASharedWeightIsQuantizedOnceAndStaysShared) {
  torch::nn::Linear first(8, 8);
  torch::nn::Sequential tied(first, torch::nn::ReLU(), first);
  const int64_t bytes = static_cast<int64_t>(first->weight.nbytes());
  quantize_module(*tied, {}, "here");
  EXPECT_TRUE(tied->named_parameters()["0.weight"].is_same(tied->named_parameters()["2.weight"]));
  EXPECT_LT(static_cast<int64_t>(first->weight.storage().nbytes()), bytes / 4);
  // If one of its layers is ignored, the weight stays as it is for all.
  torch::nn::Linear second(8, 8), last(8, 8);
  torch::nn::Sequential partly(second, torch::nn::ReLU(), second, last);
  quantize_module(*partly, {.ignore_modules = {"2"}}, "here");
  EXPECT_THAT(packed_names(*partly), ElementsAre("3.weight"));
}

TEST_F(QuantizeModule, Q56_ExistingWeightsStayAndTakeTheComputeDtype) {
  torch::nn::Sequential net(torch::nn::Linear(64, 8), torch::nn::Linear(8, 8));
  quantize_module(*net, {.ignore_modules = {"1"}}, "here");
  const at::Tensor codes = find_4bit(*packed_data(net->parameters()[0]))->codes;
  quantize_module(*net, {.format = Format::kFP4, .compute_dtype = at::kBFloat16}, "here");
  EXPECT_THAT(packed_names(*net), ElementsAre("0.weight"));
  EXPECT_TRUE(find_4bit(*packed_data(net->parameters()[0]))->codes.is_same(codes));
  const at::Tensor y = torch::matmul(at::randn({2, 64}), net->parameters()[0].t());
  EXPECT_TRUE(same_bits(y, y.to(at::kBFloat16).to(at::kFloat)));
}

TEST_F(QuantizeModule, Q56_ExistingInt8WeightsTakeTheThreshold) {
  torch::nn::Linear net(64, 8), same(64, 8);
  same->weight.set_data(net->weight.detach().clone());
  quantize_module(*net, {.format = Format::kInt8, .threshold = 6}, "here");
  quantize_module(*same, {.format = Format::kInt8, .threshold = 0.5}, "here");
  const at::Tensor x = at::randn({4, 64});
  EXPECT_FALSE(same_bits(torch::matmul(x, net->weight.t()), torch::matmul(x, same->weight.t())));
  quantize_module(*net, {.format = Format::kInt8, .threshold = 0.5}, "here");
  EXPECT_TRUE(same_bits(torch::matmul(x, net->weight.t()), torch::matmul(x, same->weight.t())));
}

TEST_F(QuantizeModule, AnErrorChangesNoExistingWeight) {
  torch::nn::Linear four(64, 8), eight(8, 8);
  quantize_module(*four, {}, "here");
  quantize_module(*eight, {.format = Format::kInt8}, "here");
  torch::nn::Sequential net(four, eight);
  const PackedDataPtr before = packed_data(four->weight);
  EXPECT_THAT(error_of([&] {
                quantize_module(
                    *net, {.format = Format::kInt8, .threshold = -1, .compute_dtype = at::kBFloat16}, "here");
              }),
              HasSubstr("the threshold is -1"));
  EXPECT_EQ(packed_data(four->weight), before);
}

TEST_F(QuantizeModule, Q56_ERR21_AModuleWithoutALinearIsATypeError) {
  torch::nn::Sequential net(torch::nn::Conv1d(2, 2, 1), torch::nn::LayerNorm(std::vector<int64_t>{4}));
  EXPECT_THROW(quantize_module(*net, {}, "here"), c10::TypeError);
  EXPECT_THAT(error_of([&] { quantize_module(*net, {}, "precision 'nf4'"); }),
              AllOf(HasSubstr("precision 'nf4': torch::nn::SequentialImpl has no torch::nn::Linear"),
                    HasSubstr("choose another mode, or quantize_embeddings or quantize_convolutions")));
  EXPECT_THAT(error_of([] {
                quantize_module(*torch::nn::LayerNorm(std::vector<int64_t>{4}),
                                {.embeddings = true, .convolutions = true}, "here");
              }),
              HasSubstr("no embedding, no convolution whose weight could be quantized; choose another mode"));
  quantize_module(*net, {.convolutions = true}, "here");
  EXPECT_THAT(packed_names(*net), ElementsAre("0.weight"));
  EXPECT_FALSE(has_layers_to_quantize(*torch::nn::Embedding(2, 2), {}));
  EXPECT_TRUE(has_layers_to_quantize(*torch::nn::Embedding(2, 2), {.embeddings = true}));
}

TEST_F(QuantizeModule, AWeightThatCannotBeQuantizedLeavesAllAsTheyWere) {
  const auto error = [](const at::Tensor& bad, const QuantizeModuleOptions& options = {}) {
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    net->parameters()[2].set_data(bad);
    const std::string message = error_of([&] { quantize_module(*net, options, "here"); });
    EXPECT_THAT(packed_names(*net), IsEmpty());
    return message;
  };
  at::Tensor one_nan = at::ones({4, 4});
  one_nan[2][1] = kNaN;
  for (const Format format : {Format::kNF4, Format::kInt8})
    EXPECT_THAT(error(one_nan, {.format = format}),
                AllOf(HasSubstr("'1.weight' has 1 values"), HasSubstr("index 9 of 16")));
  EXPECT_THAT(error(at::full({4, 4}, 1e5)), HasSubstr("'1.weight' has values that float16 cannot hold"));
  EXPECT_THAT(error(at::ones({4, 4}), {.blocksize = 48}), HasSubstr("blocks of 48 values"));
  EXPECT_THAT(error(at::ones({4, 4}), {.format = Format::kInt8, .threshold = -1}),
              HasSubstr("threshold is -1"));
  struct OnMeta : torch::nn::LinearImpl {
    OnMeta() : LinearImpl(4, 4) { weight = parameters_["weight"] = at::empty({4, 4}, at::kMeta); }
  } meta;
  EXPECT_THAT(error_of([&] { quantize_module(meta, {}, "here"); }),
              HasSubstr("'weight' is on the meta device"));
  EXPECT_THAT(error_of([&] { quantize_module(meta, {.zeros = true}, "here"); }),
              HasSubstr("'weight' is on the meta device"));
}

TEST_F(QuantizeModule, ZerosAreMadeWithoutLookingAtTheValues) {
  torch::nn::Linear net(64, 8);
  net->weight.set_data(at::full({8, 64}, kNaN));
  quantize_module(*net, {.zeros = true}, "here");
  EXPECT_TRUE(net->weight.dequantize().eq(0).all().item<bool>());
}

}  // namespace
}  // namespace mantissa::quantize_module_test
