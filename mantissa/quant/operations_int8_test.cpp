#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/kernels/int8.h"
#include "mantissa/quant/operations_int8_internal.h"
#include "mantissa/quant/test_support_internal.h"

namespace mantissa::operations_int8_test {
namespace {

using test::same_bits;

TEST(OperationsInt8, QuantizationEqualsTheKernelsBitForBit) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    for (const double threshold : {0.0, 2.0, 6.0}) {
      at::Tensor x = at::randn({7, 133}) * 3;
      x[1].zero_();
      x[2].fill_(0.5);
      x[6].slice(0, 0, 100).zero_(), x[6].mul_(1e-40);  // 127 over the largest is infinite
      x[3][7] = 6;
      x[4][8] = NAN;
      x[5][9] = HUGE_VALF;
      x = x.to(dtype);
      const QuantizedInt8 got = quant::quantize_int8_by_operations(x, threshold);
      const QuantizedInt8 want = int8_vectorwise_quant(x, threshold);
      EXPECT_TRUE(same_bits(got.scales, want.scales)) << dtype << " " << threshold;
      EXPECT_TRUE(at::equal(got.codes, want.codes)) << dtype << " " << threshold;
      EXPECT_EQ(got.outlier_cols.defined(), want.outlier_cols.defined());
      if (got.outlier_cols.defined()) {
        EXPECT_TRUE(at::equal(got.outlier_cols, want.outlier_cols));
      }
    }
}

TEST(OperationsInt8, RestoredValuesEqualTheKernelsBitForBit) {
  const QuantizedInt8 weight = quantize_int8(at::randn({50, 77}));
  const at::Tensor rows = at::randint(50, {20});
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    EXPECT_TRUE(same_bits(quant::dequantize_rows_int8_by_operations(weight, std::nullopt, dtype),
                          dequantize_int8(weight, dtype)));
    EXPECT_TRUE(same_bits(quant::dequantize_rows_int8_by_operations(weight, rows, dtype),
                          dequantize_int8(weight, dtype).index_select(0, rows)));
  }
}

TEST(OperationsInt8, ProductsEqualTheKernelsBitForBit) {
  for (const int64_t k : {1, 100, 1024, 2500}) {
    // Sums beyond the 24 bits of float32.
    const at::Tensor a = at::randint(100, 128, {5, k}, at::kChar),
                     b = at::randint(100, 128, {9, k}, at::kChar);
    const at::Tensor sums = int8_matmul(a, b);
    EXPECT_TRUE(at::equal(quant::int8_matmul_by_operations(a, b), sums)) << k;
    const QuantizedInt8 left{a, at::rand({5}), {}}, right{b, at::rand({9}), {}};
    const at::Tensor bias = at::randn({9});
    for (const auto dtype : {at::kFloat, at::kHalf})
      EXPECT_TRUE(same_bits(quant::scaled_by_operations(sums, left.scales, right.scales, bias, dtype),
                            int8_scaled_matmul(left, right, bias, dtype)))
          << k;
  }
}

TEST(OperationsInt8, TheLargestSumOfCodesOfOtherProgramsIsExact) {
  const at::Tensor a = at::full({1, kernels::kMaxInt8Depth}, -128, at::kChar);
  EXPECT_EQ(quant::int8_matmul_by_operations(a, a).item<int64_t>(), kernels::kMaxInt8Depth * 128 * 128);
  EXPECT_EQ(int8_matmul(a, a).item<int64_t>(), kernels::kMaxInt8Depth * 128 * 128);
  const at::Tensor deeper = at::full({1, kernels::kMaxInt8Depth + 1}, -128, at::kChar);
  EXPECT_THAT(error_of([&] { int8_matmul(deeper, deeper); }),
              testing::HasSubstr("sums of 131072 products may overflow int32"));
}

}  // namespace
}  // namespace mantissa::operations_int8_test
