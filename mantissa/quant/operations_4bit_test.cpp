#include <cmath>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/code_tables.h"
#include "mantissa/quant/operations_4bit_internal.h"
#include "mantissa/quant/quantized_4bit.h"
#include "mantissa/quant/test_support_internal.h"

namespace mantissa::operations_4bit_test {
namespace {

using test::same_bits;

/// Normal numbers, zeros, tiny numbers and values at the thresholds.
at::Tensor difficult(int64_t count) {
  at::Tensor x = at::randn({count});
  const auto put = [&](int64_t at, const at::Tensor& values) {
    const int64_t here = std::min(values.numel(), count - at);
    if (here > 0) x.narrow(0, at, here).copy_(values.narrow(0, 0, here));
  };
  put(64, at::zeros({64}));
  put(128, at::randn({64}) * 1e-40);
  const at::Tensor thresholds = at::cat({at::tensor(at::ArrayRef<float>(kNF4Thresholds)),
                                         at::tensor(at::ArrayRef<float>(kFP4Thresholds)), at::ones({1})});
  put(192, thresholds);
  put(256, -thresholds);
  return x;
}

TEST(Operations4Bit, EqualTheKernelsBitForBit) {
  for (const Format format : {Format::kNF4, Format::kFP4})
    for (const int64_t count : {1, 2, 63, 64, 65, 300, 5001}) {
      const at::Tensor x = difficult(count);
      const Quantized4Bit want = quantize_4bit(x, {.format = format});
      const auto [codes, absmax] = quant::quantize_by_operations(x, 64, format);
      EXPECT_TRUE(at::equal(codes, want.codes.view({-1}))) << count;
      EXPECT_TRUE(same_bits(absmax, want.absmax)) << count;
      for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
        EXPECT_TRUE(same_bits(quant::dequantize_by_operations(codes, absmax, count, 64, format, dtype),
                              dequantize_4bit(want, dtype)))
            << count << " " << dtype;
    }
}

TEST(Operations4Bit, ABlockThatIsNotFiniteHasSuchAScale) {
  at::Tensor x = at::randn({200});
  x[3] = NAN;
  x[100] = -HUGE_VALF;
  const at::Tensor absmax = quant::quantize_by_operations(x, 64, Format::kNF4).second;
  EXPECT_TRUE(absmax[0].isnan().item<bool>());
  EXPECT_TRUE(absmax[1].isinf().item<bool>());
  EXPECT_TRUE(absmax.narrow(0, 2, 2).isfinite().all().item<bool>());
}

TEST(Operations4Bit, DoubleQuantizationEqualsTheKernels) {
  for (const int64_t blocks : {1, 256, 300, 1000}) {
    const at::Tensor x = at::randn({blocks * 64}) * at::rand({1}).exp();
    const Quantized4Bit plain = quantize_4bit(x), want = quantize_4bit(x, {.compress_statistics = true});
    const auto [codes, absmax] = quant::quantize_nested_by_operations(plain.absmax - want.nested_offset);
    EXPECT_TRUE(at::equal(codes, want.absmax)) << blocks;
    EXPECT_TRUE(same_bits(absmax, want.nested_absmax)) << blocks;
  }
}

}  // namespace
}  // namespace mantissa::operations_4bit_test
