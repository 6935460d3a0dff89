#include "mantissa/quant/packed_4bit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/quant/linear_4bit.h"
#include "mantissa/quant/operations_4bit_internal.h"
#include "mantissa/quant/quant_state.h"
#include "mantissa/quant/test_support_internal.h"
#include "mantissa/weights/named_parts.h"
#include "mantissa/weights/packed_weight.h"
#include "mantissa/weights/replace_weight.h"

namespace mantissa::packed_4bit_test {
namespace {

using quant::recorded;
using quant::Tensors;
using test::same_bits;
using testing::AllOf;
using testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

/// A layer with a packed weight, and its float twin.
struct Layers {
  explicit Layers(const Quantize4BitOptions& options = {},
                  std::optional<at::ScalarType> compute_dtype = std::nullopt, int64_t in = 96,
                  int64_t out = 40)
      : packed(in, out), plain(in, out) {
    const PackedDataPtr data = pack_4bit(packed->weight, options, "w", compute_dtype);
    const at::NoGradGuard no_grad;
    plain->weight.copy_(data->dequantize(at::kFloat));
    plain->bias.copy_(packed->bias);
    replace_weight(*packed, "weight", make_packed_weight(data));
  }
  torch::nn::Linear packed, plain;
};

Tensors weights_of(const torch::nn::Module& module) {
  Tensors all;
  for (const auto& item : module.named_parameters()) all.emplace(item.key(), item.value());
  return all;
}

const Quantized4Bit& codes_of(const at::Tensor& weight) { return *find_4bit(*packed_data(weight)); }

TEST(Packed4Bit, ALinearComputesWithIt) {
  torch::manual_seed(0);
  for (const Format format : {Format::kNF4, Format::kFP4})
    for (const bool nested : {false, true}) {
      Layers layers({.format = format, .compress_statistics = nested});
      // torch::nn::Linear adds the bias of a batch of sequences in place.
      const at::Tensor x = at::randn(nested ? std::vector<int64_t>{2, 5, 96} : std::vector<int64_t>{5, 96})
                               .set_requires_grad(true),
                       same = x.detach().clone().set_requires_grad(true);
      const at::Tensor got = layers.packed(x), want = layers.plain(same);
      EXPECT_TRUE(at::allclose(got, want, 1e-5, 1e-5));
      got.square().sum().backward();
      want.square().sum().backward();
      EXPECT_TRUE(at::allclose(x.grad(), same.grad(), 1e-5, 1e-4));
      EXPECT_TRUE(at::allclose(layers.packed->bias.grad(), layers.plain->bias.grad(), 1e-5, 1e-4));
      EXPECT_FALSE(layers.packed->weight.grad().defined());
    }
}

TEST(Packed4Bit, Q23_TheComputeDtypeIsThatOfTheProductAndNotOfTheResult) {
  torch::manual_seed(0);
  Layers layers({}, at::kBFloat16);
  const at::Tensor x = at::randn({4, 96}).set_requires_grad(true);
  const at::Tensor y = layers.packed(x);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_TRUE(same_bits(y, y.to(at::kBFloat16).to(at::kFloat))) << "it was rounded to bf16";
  EXPECT_TRUE(at::allclose(y, layers.plain(x), 1.6e-2, 1e-2));
  y.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(same_bits(x.grad(), x.grad().to(at::kBFloat16).to(at::kFloat)));
  // Without one, the input's dtype decides.
  Layers free;
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble})
    EXPECT_EQ(free.packed(x.detach().to(dtype)).scalar_type(), dtype);
}

TEST(Packed4Bit, Q60_ValuesAreRoundedToFloat16First) {
  torch::manual_seed(0);
  const at::Tensor weight = at::randn({64, 64});
  const Quantize4BitOptions options{.compress_statistics = true};
  const Quantized4Bit got = *find_4bit(*pack_4bit(weight, options, "w")),
                      want = quantize_4bit(weight.to(at::kHalf), options);
  EXPECT_TRUE(same_bits(got.codes, want.codes));
  EXPECT_TRUE(same_bits(got.absmax, want.absmax));
  EXPECT_EQ(got.dtype, at::kHalf);
  // bf16 and float64 are rounded, too; float16 is taken as it is.
  for (const auto dtype : {at::kBFloat16, at::kDouble, at::kHalf})
    EXPECT_TRUE(same_bits(find_4bit(*pack_4bit(weight.to(dtype), options, "w"))->codes,
                          quantize_4bit(weight.to(dtype).to(at::kHalf), options).codes));
}

void expect_rows_of_the_whole(const Quantize4BitOptions& options, const std::vector<int64_t>& sizes) {
  const PackedDataPtr data = pack_4bit(at::randn(sizes), options, "w");
  const at::Tensor rows = torch::tensor({2, 0, 2, 1}, at::kLong);
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    SCOPED_TRACE(testing::Message() << data->description() << " " << at::IntArrayRef(sizes) << " " << dtype);
    const at::Tensor whole = data->dequantize(dtype);
    for (const at::Tensor& some : {rows, rows.narrow(0, 1, 1), rows.narrow(0, 0, 0), rows.slice(0, 0, 4, 2)})
      EXPECT_TRUE(same_bits(data->dequantize_rows(some, dtype), whole.index_select(0, some))) << some.sizes();
    EXPECT_TRUE(same_bits(quant::dequantize_rows_by_operations(*find_4bit(*data), rows).to(dtype).view(-1),
                          whole.index_select(0, rows).view(-1)));
    for (const int64_t bad : {int64_t{-1}, sizes[0], std::numeric_limits<int64_t>::max()})
      EXPECT_THROW(data->dequantize_rows(torch::tensor({int64_t{0}, bad}), dtype), c10::Error) << bad;
  }
}

TEST(Packed4Bit, RowsOfATableEqualThoseOfTheWholeWeight) {
  torch::manual_seed(0);
  for (const Format format : {Format::kNF4, Format::kFP4})
    for (const bool nested : {false, true})
      for (const int64_t blocksize : {32, 64, 4096})
        for (const auto& sizes :
             std::vector<std::vector<int64_t>>{{7, 64}, {9, 5}, {3, 1}, {300, 96}, {4, 3, 5}, {3, 6000}, {5}})
          expect_rows_of_the_whole({format, blocksize, nested}, sizes);
  const PackedDataPtr empty = pack_4bit(at::ones({3, 0}), {}, "w");
  EXPECT_EQ(empty->dequantize_rows(torch::tensor({2, 2}, at::kLong), at::kHalf).sizes(),
            at::IntArrayRef({2, 0}));
}

TEST(Packed4Bit, IndicesMustBeOnTheDeviceOfTheTable) {
  const PackedDataPtr table = pack_4bit(at::ones({4, 64}), {}, "w");
  EXPECT_THAT(error_of([&] { table->dequantize_rows(torch::tensor({1}).to(at::kMeta), at::kFloat); }),
              AllOf(HasSubstr("the indices are on meta"), HasSubstr("move one of them")));
}

TEST(Packed4Bit, AnEmbeddingAndAConvolutionComputeWithIt) {
  torch::manual_seed(0);
  torch::nn::Embedding table(50, 24);
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 8, 3).padding(1));
  for (const bool nested : {false, true}) {
    const PackedDataPtr rows =
        pack_4bit(at::randn({50, 24}), {.compress_statistics = nested}, "table.weight");
    replace_weight(*table, "weight", make_packed_weight(rows));
    const at::Tensor indices = torch::tensor({{1, 49}, {1, 0}});
    EXPECT_TRUE(same_bits(table(indices), torch::embedding(rows->dequantize(at::kFloat), indices)));
    const PackedDataPtr kernel =
        pack_4bit(at::randn({8, 3, 3, 3}), {.compress_statistics = nested}, "conv.weight");
    replace_weight(*conv, "weight", make_packed_weight(kernel));
    const at::Tensor image = at::randn({2, 3, 6, 6});
    EXPECT_TRUE(same_bits(conv(image), torch::conv2d(image, kernel->dequantize(at::kFloat), conv->bias,
                                                     /*stride=*/1, /*padding=*/1)));
  }
}

TEST(Packed4Bit, Q15_BytesAreThoseOfCodesAndScales) {
  const auto bytes = [](const Quantize4BitOptions& options) {
    return make_packed_weight(pack_4bit(at::ones({1024, 1024}), options, "w")).storage().nbytes();
  };
  constexpr size_t kCount = 1024 * 1024;
  EXPECT_EQ(bytes({}), kCount / 2 + 4 * kCount / 64);
  EXPECT_EQ(bytes({.compress_statistics = true}), kCount / 2 + kCount / 64 + 4 * kCount / 64 / 256 + 4);
  EXPECT_EQ(bytes({.blocksize = 4096}), kCount / 2 + 4 * kCount / 4096);
}

TEST(Packed4Bit, Q16_AModelsPartsAreBitsandbytesStateDict) {
  torch::manual_seed(0);
  for (const bool nested : {false, true}) {
    torch::nn::Sequential net(torch::nn::Linear(96, 40));
    const Quantized4Bit codes = quantize_4bit(at::randn({40, 96}), {.compress_statistics = nested});
    replace_weight(*net, "0.weight", make_packed_weight(make_packed_4bit(codes)));
    Tensors got = named_parts(weights_of(*net)), want = pack_state(codes, "0.weight");
    EXPECT_EQ(got.size(), want.size() + 1) << "and the bias";
    for (const auto& [name, tensor] : want) EXPECT_TRUE(same_bits(got.at(name), tensor)) << name;
  }
}

TEST(Packed4Bit, Q58_LoadsItsOwnStateAndBitsandbytesFiles) {
  torch::manual_seed(0);
  for (const std::string file : {"state_linear4bit_nf4_dq", "state_linear4bit_fp4"}) {
    const Tensors saved = recorded(file);
    const Quantized4Bit want = unpack_state_4bit(saved, "layer.weight");
    torch::nn::Sequential net;
    net->push_back("layer", torch::nn::Linear(torch::nn::LinearOptions(64, 32).bias(false)));
    const Quantize4BitOptions options{.format = want.format, .compress_statistics = want.is_nested()};
    replace_weight(*net, "layer.weight", make_packed_weight(pack_4bit(at::ones({32, 64}), options, "w")));
    Tensors stored = saved;
    stored.erase("layer.bias");
    PartsLoader(*net, stored).load();
    EXPECT_TRUE(stored.empty() || !stored.begin()->first.starts_with("layer")) << stored.begin()->first;
    const Quantized4Bit& got = codes_of(net->parameters()[0]);
    EXPECT_TRUE(same_bits(got.codes, want.codes)) << file;
    EXPECT_TRUE(same_bits(dequantize_4bit(got), dequantize_4bit(want)));
    EXPECT_FALSE(got.codes.is_alias_of(want.codes)) << "the file's memory is not kept";
    EXPECT_FALSE(got.absmax.is_alias_of(want.absmax));
  }
}

TEST(Packed4Bit, Q57_LoadsPlainValues) {
  torch::manual_seed(0);
  Layers layers({.format = Format::kFP4, .blocksize = 32, .compress_statistics = true}, at::kBFloat16);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor values = at::randn({40, 96}).to(dtype);
    Tensors stored{{"weight", values}};
    PartsLoader(*layers.packed, stored).load();
    EXPECT_TRUE(stored.empty());
    const Quantized4Bit want =
        quantize_4bit(values.to(at::kHalf), {Format::kFP4, 32, /*compress_statistics=*/true});
    EXPECT_TRUE(same_bits(dequantize_4bit(codes_of(layers.packed->weight)), dequantize_4bit(want)));
  }
  const at::Tensor y = layers.packed(at::randn({2, 96}));
  EXPECT_TRUE(same_bits(y, y.to(at::kBFloat16).to(at::kFloat))) << "the compute dtype is kept";
}

class Packed4BitErrors : public testing::Test {
 protected:
  std::string loading(Tensors stored) {
    const at::Tensor before = layers_.packed->weight.dequantize();
    const std::string error = error_of([&] { PartsLoader(*layers_.packed, stored).load(); });
    EXPECT_TRUE(same_bits(layers_.packed->weight.dequantize(), before));
    return error;
  }
  Layers layers_{{}, std::nullopt, 64, 32};
};

TEST_F(Packed4BitErrors, OtherFormatsAreNamedWithTheMode) {
  const at::Tensor w = at::randn({32, 64});
  EXPECT_THAT(loading(pack_state(quantize_4bit(w, {.format = Format::kFP4}), "weight")),
              AllOf(HasSubstr("'weight' is saved as fp4, blocks of 64"), HasSubstr("nf4, blocks of 64"),
                    HasSubstr("choose the mode fp4")));
  EXPECT_THAT(loading(pack_state(quantize_4bit(w, {.compress_statistics = true}), "weight")),
              HasSubstr("choose the mode nf4-dq with blocksize 64"));
  EXPECT_THAT(loading(pack_state(quantize_4bit(w, {.blocksize = 128}), "weight")),
              HasSubstr("choose the mode nf4 with blocksize 128"));
  EXPECT_THAT(loading({{"weight", at::zeros({32, 64}, at::kChar)}, {"SCB", at::ones({32})}}),
              AllOf(HasSubstr("saved as int8"), HasSubstr("mode int8")));
}

TEST_F(Packed4BitErrors, IncompleteAndUnfittingStatesChangeNothing) {
  EXPECT_THAT(loading({}), HasSubstr("'weight' is missing"));
  Tensors torn = pack_state(quantize_4bit(at::randn({32, 64})), "weight");
  torn.erase("weight.absmax");
  EXPECT_THAT(loading(torn), HasSubstr("no tensor 'weight.absmax'"));
  torn = pack_state(quantize_4bit(at::randn({32, 64})), "weight");
  torn["weight"] = torn["weight"].narrow(0, 0, 1000);
  EXPECT_THAT(loading(torn), HasSubstr("'weight' has 1000 bytes of codes"));
  EXPECT_THAT(loading(pack_state(quantize_4bit(at::randn({64, 32})), "weight")),
              AllOf(HasSubstr("has shape [64, 32]"), HasSubstr("[32, 64]")));
  EXPECT_THAT(loading({{"weight", at::randn({64, 32})}}), HasSubstr("[64, 32]"));
  EXPECT_THAT(loading({{"weight", at::full({32, 64}, kInf)}}), HasSubstr("'weight' has 2048 values"));
  EXPECT_THAT(loading({{"weight", at::full({32, 64}, 1e5)}}),
              AllOf(HasSubstr("'weight' has values that float16 cannot hold"), HasSubstr("65504")));
}

TEST(Packed4Bit, CodesThatDoNotFitTheShapeBecomeNoWeight) {
  Quantized4Bit torn = quantize_4bit(at::ones({32, 64}));
  torn.absmax = at::ones({3});
  EXPECT_THAT(error_of([&] { make_packed_4bit(torn); }), HasSubstr("make_packed_4bit: there are 3 scales"));
}

TEST(Packed4Bit, WrongArgumentsAreRefused) {
  EXPECT_THAT(error_of([] {
                pack_4bit(at::ones({2, 2}, at::kLong), {}, "'fc.weight'");
              }),
              AllOf(HasSubstr("'fc.weight' has dtype Long"), HasSubstr("cast it")));
  EXPECT_THAT(error_of([] { pack_4bit({}, {}, "'fc.weight'"); }), HasSubstr("undefined"));
  EXPECT_THAT(error_of([] {
                pack_4bit(at::ones({2, 2}), {.blocksize = 48}, "w");
              }),
              HasSubstr("blocks of 48"));
  EXPECT_THAT(error_of([] { make_packed_4bit(quantize_4bit(at::ones({}))); }), HasSubstr("no dimension"));
  EXPECT_THAT(error_of([] {
                make_packed_4bit(quantize_4bit(at::ones({2, 2})), at::kInt);
              }),
              HasSubstr("Int"));
  EXPECT_EQ(find_4bit(*pack_4bit(at::ones({2, 2}), {}, "w"))->blocksize, 64);
}

TEST(Packed4Bit, CodesStoredInAnotherDtypeComputeAlike) {
  torch::manual_seed(0);
  const at::Tensor w = at::randn({32, 64}), x = at::randn({3, 64});
  const auto product = [&](at::ScalarType storage) {
    const at::Tensor weight = make_packed_weight(pack_4bit(w, {.quant_storage = storage}, "w"));
    return std::pair{torch::matmul(x, weight.t()), torch::embedding(weight, torch::tensor({5}))};
  };
  for (const auto storage : {at::kBFloat16, at::kFloat}) {
    EXPECT_TRUE(same_bits(product(storage).first, product(at::kByte).first));
    EXPECT_TRUE(same_bits(product(storage).second, product(at::kByte).second));
  }
}

TEST(Packed4Bit, AnotherDeviceGetsAllParts) {
  const PackedDataPtr data = pack_4bit(at::randn({32, 64}), {.compress_statistics = true}, "w");
  const PackedDataPtr meta = data->to(at::kMeta);
  for (const auto& [name, part] : meta->parts()) EXPECT_TRUE(part.is_meta()) << name;
  EXPECT_EQ(meta->nbytes(), data->nbytes());
  PackedData::Parts bad = data->parts();
  bad["nested_offset"] = at::full({}, kInf);
  EXPECT_THAT(error_of([&] { data->with_parts(bad); }), HasSubstr("nf4-dq, blocks of 64: a scale is inf"));
}

}  // namespace
}  // namespace mantissa::packed_4bit_test
