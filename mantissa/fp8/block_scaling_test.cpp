#include "mantissa/fp8/block_scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/fp8/quantized_fp8.h"
#include "mantissa/fp8/test_support_internal.h"

namespace mantissa::block_scaling_test {
namespace {

using namespace fp8;
using test::same_bits;
using testing::HasSubstr;

constexpr at::ScalarType kE4M3 = at::kFloat8_e4m3fn;

// Each block alone is a tensor with current scaling.
TEST(BlockScaling, F8_43_EachBlockHasTheScaleOfItsAmax) {
  torch::manual_seed(1);
  for (const at::ScalarType input : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const bool power_of_two : {true, false}) {
      const at::Tensor x = wide({128, 384}, input);
      for (const Fp8Block block : {Fp8Block::k1x128, Fp8Block::k128x128}) {
        const int64_t height = block == Fp8Block::k1x128 ? 1 : 128;
        const QuantizedFp8Blocks got = quantize_fp8_blocks(x, kE4M3, block, {.power_of_two = power_of_two});
        ASSERT_EQ(got.scale_inv.sizes(), (std::vector<int64_t>{128 / height, 3}));
        for (int64_t row = 0; row < 128; row += height)
          for (int64_t col = 0; col < 384; col += 128) {
            const auto part = [&](const at::Tensor& t) {
              return t.narrow(0, row, height).narrow(1, col, 128);
            };
            const QuantizedFp8 want = quantize_fp8_current(part(x), kE4M3, {.power_of_two = power_of_two});
            ASSERT_EQ(got.scale_inv[row / height][col / 128].item<float>(), want.scale_inv.item<float>());
            ASSERT_TRUE(at::equal(part(bytes(got.codes)), bytes(want.codes)));
            ASSERT_TRUE(same_bits(part(dequantize_fp8(got)), dequantize_fp8(want)));
          }
      }
    }
}

TEST(BlockScaling, F8_43_OtherShapesAreRefused) {
  EXPECT_THAT(error_of([] {
                quantize_fp8_blocks(torch::ones({2, 130}), kE4M3, Fp8Block::k1x128);
              }),
              HasSubstr("has 2 rows of 130 values, which are no whole blocks of 1 x 128; pad it with zeros"));
  EXPECT_THAT(error_of([] {
                quantize_fp8_blocks(torch::ones({2, 128}), kE4M3, Fp8Block::k128x128);
              }),
              HasSubstr("no whole blocks of 128 x 128"));
  EXPECT_EQ(quantize_fp8_blocks(torch::ones({2, 3, 128}), kE4M3, Fp8Block::k1x128).scale_inv.sizes(),
            (std::vector<int64_t>{6, 1}));
  EXPECT_EQ(quantize_fp8_blocks(torch::ones({0, 128}), kE4M3, Fp8Block::k1x128).codes.numel(), 0);
}

TEST(BlockScaling, ATransposedWeightHasTransposedBlocks) {
  const at::Tensor w = wide({128, 256});
  const QuantizedFp8Blocks rows = quantize_fp8_blocks(w, kE4M3, Fp8Block::k128x128),
                           columns = quantize_fp8_blocks(w.t(), kE4M3, Fp8Block::k128x128);
  EXPECT_TRUE(at::equal(bytes(rows.codes).t(), bytes(columns.codes)));
  EXPECT_TRUE(same_bits(rows.scale_inv.t().contiguous(), columns.scale_inv));
}

// An infinite quotient becomes the largest number of the input's dtype, and so a power of two below it.
TEST(BlockScaling, ATinyBlockHasTheLargestScaleOfItsDtype) {
  at::Tensor x = torch::zeros({1, 128});
  x[0][3] = 1e-38F;
  EXPECT_EQ(quantize_fp8_blocks(x, kE4M3, Fp8Block::k1x128).scale_inv.item<float>(), 0x1p-127F);
  const float bf16 =
      quantize_fp8_blocks(x.to(at::kBFloat16), kE4M3, Fp8Block::k1x128, {.power_of_two = false})
          .scale_inv.item<float>();
  EXPECT_EQ(bf16, 1 / 0x1.FEp127F);
}

TEST(BlockScaling, ColumnsHaveTheCodesOfTheTransposedMatrix) {
  torch::manual_seed(3);
  const at::Tensor x = wide({256, 700});
  for (const at::ScalarType dtype : kFp8Dtypes) {
    const QuantizedFp8Blocks got = quantize_fp8_blocks(x, dtype, Fp8Block::k128x1),
                             want = quantize_fp8_blocks(x.t(), dtype, Fp8Block::k1x128);
    EXPECT_TRUE(at::equal(bytes(got.codes), bytes(want.codes).t()));
    EXPECT_TRUE(at::equal(got.scale_inv, want.scale_inv.t()));
    EXPECT_TRUE(at::equal(dequantize_fp8(got), dequantize_fp8(want).t()));
  }
}

}  // namespace
}  // namespace mantissa::block_scaling_test
