#include "mantissa/quant/quantized_4bit.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include <torch/torch.h>

#include "mantissa/core/code_tables.h"
#include "mantissa/quant/test_support_internal.h"

namespace mantissa::quantized_4bit_test {
namespace {

using quant::recorded;
using test::same_bits;
using testing::HasSubstr;

constexpr Format kFormats[] = {Format::kNF4, Format::kFP4};

std::string name_of(Format format) { return std::string(info(format).name); }

/// Returns bytes in which FP4's second zero, code 8, is code 0. bitsandbytes's CPU and its GPU kernels give
/// tiny numbers different ones of the two.
at::Tensor one_zero(const at::Tensor& bytes) {
  at::Tensor high = bytes.bitwise_and(0xf0), low = bytes.bitwise_and(0x0f);
  return high.masked_fill(high == 0x80, 0) + low.masked_fill(low == 8, 0);
}

TEST(Quantize4Bit, Q02_Q03_Q04_EqualsBitsandbytes) {
  const auto tensors = recorded("quant4");
  const at::Tensor weight = tensors.at("w_32x64");
  for (const Format format : kFormats)
    for (const int64_t blocksize : {64, 128}) {
      const std::string prefix = name_of(format) + "_b" + std::to_string(blocksize);
      const Quantized4Bit got = quantize_4bit(weight, {.format = format, .blocksize = blocksize});
      const auto known = format == Format::kFP4 ? &one_zero : +[](const at::Tensor& bytes) { return bytes; };
      EXPECT_TRUE(at::equal(known(got.codes), known(tensors.at(prefix + "_packed")))) << prefix;
      EXPECT_TRUE(same_bits(got.absmax, tensors.at(prefix + "_absmax"))) << prefix;
      if (blocksize != 64) continue;
      EXPECT_TRUE(at::equal(dequantize_4bit(got), tensors.at(prefix + "_dequant_f32")));
      if (format != Format::kNF4) continue;
      EXPECT_TRUE(
          at::equal(dequantize_4bit(got, at::kHalf).narrow(0, 0, 8), tensors.at(prefix + "_dequant_f16")));
      EXPECT_TRUE(at::equal(dequantize_4bit(got, at::kBFloat16).narrow(0, 0, 8),
                            tensors.at(prefix + "_dequant_bf16")));
      EXPECT_TRUE(at::equal(dequantize_4bit(got, at::kDouble), dequantize_4bit(got).to(at::kDouble)));
    }
}

TEST(Quantize4Bit, Q05_OddAndPartialSizesEqualBitsandbytes) {
  const auto tensors = recorded("quant4");
  for (const std::string size : {"3x5", "5x30"}) {
    const at::Tensor weight = tensors.at("w_" + size);
    const Quantized4Bit got = quantize_4bit(weight);
    EXPECT_TRUE(at::equal(got.codes, tensors.at("nf4_" + size + "_packed"))) << size;
    EXPECT_TRUE(same_bits(got.absmax, tensors.at("nf4_" + size + "_absmax"))) << size;
    EXPECT_EQ(got.codes.size(0), (weight.numel() + 1) / 2);
    EXPECT_EQ(got.absmax.size(0), (weight.numel() + 63) / 64);
    EXPECT_EQ(dequantize_4bit(got).sizes(), weight.sizes());
  }
}

TEST(Quantize4Bit, Q13_Q14_DoubleQuantizationEqualsBitsandbytes) {
  const auto tensors = recorded("quant4_dq");
  const at::Tensor weight = tensors.at("w_68x256");
  Quantized4Bit got = quantize_4bit(weight, {.compress_statistics = true});
  EXPECT_TRUE(at::equal(got.codes, tensors.at("packed")));
  EXPECT_TRUE(same_bits(quantize_4bit(weight).absmax, tensors.at("absmax_plain")));
  // The order in which the peer adds the scales is open.
  EXPECT_TRUE(at::allclose(got.nested_offset, tensors.at("offset"), 1e-6, 0));
  EXPECT_TRUE(at::equal(got.absmax, tensors.at("absmax_u8")));
  EXPECT_TRUE(at::allclose(got.nested_absmax, tensors.at("nested_absmax"), 1e-6, 0));

  got.nested_offset = tensors.at("offset");
  got.nested_absmax = tensors.at("nested_absmax");
  EXPECT_TRUE(same_bits(absmax_of(got), tensors.at("absmax_restored")));
  const at::Tensor restored = dequantize_4bit(got);
  EXPECT_EQ(restored.scalar_type(), at::kHalf);
  EXPECT_TRUE(at::equal(restored.narrow(0, 0, 16), tensors.at("dequant_f16_rows0_16")));
  EXPECT_TRUE(at::equal(restored.narrow(0, 64, 4), tensors.at("dequant_f16_rows64_68")));
}

TEST(Quantize4Bit, ASingleBlockIsRestoredExactlyAfterDoubleQuantization) {
  const at::Tensor weight = at::tensor({0.3F, -0.1F});
  const Quantized4Bit got = quantize_4bit(weight, {.compress_statistics = true});
  EXPECT_EQ(got.nested_absmax.item<float>(), 0);
  EXPECT_EQ(absmax_of(got).item<float>(), 0.3F);
}

TEST(Quantize4Bit, Q07_ValuesOfATableQuantizeToThemselves) {
  for (const Format format : kFormats) {
    const at::Tensor values =
        at::tensor(at::ArrayRef<float>(format == Format::kNF4 ? kNF4Values : kFP4Values)).repeat({8}) * 0.7F;
    EXPECT_TRUE(at::equal(dequantize_4bit(quantize_4bit(values, {.format = format})), values));
  }
}

TEST(Quantize4Bit, Q09_ZerosAndNothingAtAllStayWhatTheyAre) {
  for (const Format format : kFormats)
    for (const bool nested : {false, true}) {
      const Quantize4BitOptions options{.format = format, .compress_statistics = nested};
      EXPECT_TRUE(at::equal(dequantize_4bit(quantize_4bit(at::zeros({7, 33}), options)), at::zeros({7, 33})));
      const Quantized4Bit empty = quantize_4bit(at::empty({0, 64}, at::kHalf), options);
      EXPECT_EQ(empty.nbytes(), nested ? 4 : 0);
      EXPECT_TRUE(at::equal(dequantize_4bit(empty), at::empty({0, 64}, at::kHalf)));
    }
  EXPECT_EQ(dequantize_4bit(quantize_4bit(at::full({}, 0.3F))).item<float>(), 0.3F);
}

TEST(Quantize4Bit, ZerosHaveTheFormOfAQuantizedTensor) {
  for (const Format format : kFormats)
    for (const bool nested : {false, true})
      for (const std::vector<int64_t>& shape : {std::vector<int64_t>{5, 7}, {300, 128}, {0, 4}}) {
        const Quantize4BitOptions options{.format = format, .compress_statistics = nested};
        const Quantized4Bit zeros = zeros_4bit(shape, at::kHalf, options, at::kCPU),
                            like = quantize_4bit(at::ones(shape, at::kHalf), options);
        EXPECT_TRUE(dequantize_4bit(zeros).eq(0).all().item<bool>());
        EXPECT_EQ(dequantize_4bit(zeros).scalar_type(), at::kHalf);
        EXPECT_EQ(zeros.nbytes(), like.nbytes());
        EXPECT_EQ(zeros.is_nested(), nested);
        const Quantized4Bit meta = zeros_4bit(shape, at::kHalf, options, at::kMeta);
        for (const auto part :
             {&Quantized4Bit::codes, &Quantized4Bit::absmax, &Quantized4Bit::nested_absmax}) {
          if (!(like.*part).defined()) continue;
          EXPECT_EQ((zeros.*part).sizes(), (like.*part).sizes());
          EXPECT_EQ((zeros.*part).scalar_type(), (like.*part).scalar_type());
          EXPECT_EQ((meta.*part).sizes(), (like.*part).sizes());
        }
      }
}

TEST(Quantize4Bit, Q11_OtherBlocksFormatsAndDtypesAreRefused) {
  const at::Tensor x = at::randn({8, 8});
  for (const int64_t blocksize : {0, -64, 16, 48, 8192})
    EXPECT_THAT(error_of([&] { quantize_4bit(x, {.blocksize = blocksize}); }),
                HasSubstr("choose 32, 64, 128"));
  EXPECT_THAT(error_of([&] { quantize_4bit(x, {.format = Format::kInt8}); }),
              HasSubstr("int8 has no 4-bit codes; choose nf4 or fp4"));
  EXPECT_THAT(
      error_of([&] { quantize_4bit(x.to(at::kDouble), {}, "'layer.weight'"); }),
      HasSubstr("quantize_4bit: 'layer.weight' has dtype Double; cast it to float32, float16 or bfloat16"));
  EXPECT_THAT(error_of([&] { quantize_4bit(x, {.quant_storage = at::kInt}); }), HasSubstr("choose uint8"));
  EXPECT_THAT(error_of([&] { quantize_4bit(at::Tensor(), {}, "'w'"); }), HasSubstr("'w' is undefined"));
  EXPECT_THAT(error_of([&] { dequantize_4bit(quantize_4bit(x), at::kInt); }), HasSubstr("choose float32"));
  EXPECT_THROW(quantize_4bit(x, {.blocksize = 63}), c10::ValueError);
  EXPECT_THROW(quantize_4bit(x.to(at::kInt)), c10::TypeError);
}

/// Kernels would read past the end of what is too short.
TEST(Quantize4Bit, WhatDoesNotFitTheShapeIsNotRestored) {
  const Quantized4Bit whole = quantize_4bit(at::ones({32, 64})),
                      nested = quantize_4bit(at::ones({512, 64}), {.compress_statistics = true});
  const auto restoring = [](Quantized4Bit q, const auto& change) {
    change(q);
    return error_of([&] { dequantize_4bit(q, at::kFloat); });
  };
  using Q = Quantized4Bit;
  EXPECT_THAT(restoring(whole,
                        [](Q& q) {
                          q.shape = {64, 64};
                        }),
              HasSubstr("dequantize_4bit: the codes have 1024 bytes; a weight of shape [64, 64] has 2048"));
  EXPECT_THAT(restoring(whole, [](Q& q) { q.absmax = q.absmax.narrow(0, 0, 31).clone(); }),
              HasSubstr("there are 31 scales; a weight of shape [32, 64] in blocks of 64 has 32"));
  EXPECT_THAT(restoring(whole, [](Q& q) { q.absmax = at::ones({1}).expand({32}); }),
              HasSubstr("the scales have the strides [0]"));
  EXPECT_THAT(restoring(whole, [](Q& q) { q.absmax = at::Tensor(); }), HasSubstr("the scales are undefined"));
  EXPECT_THAT(restoring(whole, [](Q& q) { q.codes = at::Tensor(); }), HasSubstr("the codes are undefined"));
  for (const int64_t blocksize : {0, -64, 48, 8192})
    EXPECT_THAT(restoring(whole, [&](Q& q) { q.blocksize = blocksize; }), HasSubstr("blocks of "));
  EXPECT_THAT(restoring(nested, [](Q& q) { q.nested_absmax = q.nested_absmax.narrow(0, 0, 1); }),
              HasSubstr("there are 1 scales of 512 quantized scales; there have to be 2"));
  EXPECT_THAT(restoring(nested, [](Q& q) { q.nested_map = q.nested_map.narrow(0, 0, 255); }),
              HasSubstr("nested_map has the shape [255]"));
  EXPECT_THAT(restoring(nested, [](Q& q) { q.nested_offset = at::Tensor(); }), HasSubstr("nested_offset"));
  Quantized4Bit torn = nested;
  torn.nested_absmax = at::ones({1});
  EXPECT_THAT(error_of([&] { absmax_of(torn); }), HasSubstr("absmax_of: there are 1 scales"));
}

TEST(Quantize4Bit, ATensorThatIsNotFiniteIsRefusedByName) {
  for (const float bad : {NAN, HUGE_VALF, -HUGE_VALF})
    for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      at::Tensor x = at::randn({4, 100}).to(dtype);
      x[3][99] = bad;
      EXPECT_THAT(
          error_of([&] { quantize_4bit(x, {.compress_statistics = true}, "'layer.weight'"); }),
          HasSubstr("'layer.weight' has 1 values that are inf or nan, the first at index 399 of 400"));
    }
}

TEST(Quantize4Bit, Q12_16BitValuesQuantizeAsTheirFloat32Values) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const at::Tensor x = at::randn({33, 65}).to(dtype);
    const Quantized4Bit narrow = quantize_4bit(x), wide = quantize_4bit(x.to(at::kFloat));
    EXPECT_TRUE(at::equal(narrow.codes, wide.codes));
    EXPECT_TRUE(same_bits(narrow.absmax, wide.absmax));
    EXPECT_EQ(narrow.dtype, dtype);
  }
}

TEST(Quantize4Bit, Q15_BytesFollowTheFormula) {
  const int64_t n = 1 << 20;
  const at::Tensor x = at::randn({1024, 1024});
  EXPECT_EQ(quantize_4bit(x).nbytes() * 8, n * 4 + n / 64 * 32);
  const Quantized4Bit nested = quantize_4bit(x, {.compress_statistics = true});
  EXPECT_EQ(nested.nbytes() * 8, n * 4 + n / 64 * 8 + n / 64 / 256 * 32 + 32);
  EXPECT_NEAR(static_cast<double>(nested.nbytes()) * 8 / static_cast<double>(n), 4.127, 1e-3);
}

TEST(Quantize4Bit, AnyStorageHasTheSameBytes) {
  const at::Tensor x = at::randn({32, 64});
  const Quantized4Bit bytes = quantize_4bit(x);
  for (const at::ScalarType storage : {at::kHalf, at::kBFloat16, at::kFloat}) {
    const Quantized4Bit got = quantize_4bit(x, {.quant_storage = storage});
    EXPECT_EQ(got.codes.scalar_type(), storage);
    EXPECT_EQ(got.codes.sizes(),
              (std::vector<int64_t>{1024 / static_cast<int64_t>(got.codes.element_size()), 1}));
    EXPECT_TRUE(at::equal(got.codes.view(at::kByte).view({-1, 1}), bytes.codes));
    EXPECT_TRUE(at::equal(dequantize_4bit(got), dequantize_4bit(bytes)));
  }
  EXPECT_THAT(error_of([] { quantize_4bit(at::randn({5}), {.quant_storage = at::kFloat}, "'w'"); }),
              HasSubstr("'w' has 3 bytes of codes, which do not fill whole elements of Float"));
}

TEST(Quantize4Bit, ZerosAreStoredInEveryDtypeThatCodesAre) {
  for (const at::ScalarType storage : {at::kByte, at::kHalf, at::kBFloat16, at::kFloat}) {
    const Quantize4BitOptions options{.compress_statistics = true, .quant_storage = storage};
    const Quantized4Bit zeros = zeros_4bit({32, 64}, at::kFloat, options, at::kCPU),
                        like = quantize_4bit(at::ones({32, 64}), options);
    EXPECT_EQ(zeros.codes.scalar_type(), storage);
    EXPECT_EQ(zeros.codes.sizes(), like.codes.sizes());
    EXPECT_TRUE(dequantize_4bit(zeros).eq(0).all().item<bool>());
  }
  EXPECT_THAT(error_of([] { zeros_4bit({5}, at::kFloat, {.quant_storage = at::kFloat}, at::kCPU); }),
              HasSubstr("3 bytes of codes, which do not fill whole elements of Float"));
}

TEST(Quantize4Bit, ANegativeViewIsQuantizedAsTheValuesItShows) {
  const at::Tensor view = at::_neg_view(at::randn({70, 64})), values = view.resolve_neg();
  EXPECT_TRUE(at::equal(dequantize_4bit(quantize_4bit(view)), dequantize_4bit(quantize_4bit(values))));
}

TEST(Quantize4Bit, AViewIsQuantizedInTheOrderItShows) {
  const at::Tensor x = at::randn({70, 64});
  EXPECT_TRUE(at::equal(quantize_4bit(x.t()).codes, quantize_4bit(x.t().contiguous()).codes));
  const at::Tensor leaf = at::randn({64}).set_requires_grad(true);
  EXPECT_FALSE(dequantize_4bit(quantize_4bit(leaf)).requires_grad());
}

TEST(Quantize4Bit, ThreadsDoNotChangeTheScales) {
  const at::Tensor x = at::randn({1000, 1000});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Quantized4Bit one = quantize_4bit(x, {.compress_statistics = true});
  at::set_num_threads(3);
  const Quantized4Bit three = quantize_4bit(x, {.compress_statistics = true});
  EXPECT_TRUE(at::equal(one.absmax, three.absmax));
  EXPECT_TRUE(same_bits(one.nested_offset, three.nested_offset));
  EXPECT_TRUE(same_bits(absmax_of(one), absmax_of(three)));
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace mantissa::quantized_4bit_test
