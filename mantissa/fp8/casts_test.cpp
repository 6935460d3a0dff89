// The numbers of the two formats: fp8_casts.json holds what torch 2.11 computes on a CPU.

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/fp8/quantized_fp8.h"
#include "mantissa/fp8/test_support_internal.h"

namespace mantissa::casts_test {
namespace {

using namespace fp8;
using test::same_bits;

std::string name_of(at::ScalarType dtype) { return dtype == at::kFloat8_e4m3fn ? "e4m3fn" : "e5m2"; }

at::Tensor decoded(const at::Tensor& bytes, at::ScalarType dtype) {
  return dequantize_fp8(QuantizedFp8{bytes.view(dtype), torch::tensor(1.0F)});
}

at::Tensor all_bytes() { return torch::arange(256).to(at::kByte); }

TEST(Fp8Casts, F8_1_EveryByteHasTheRecordedValue) {
  const auto recorded = recorded_json("fp8_casts.json");
  for (const at::ScalarType dtype : kFp8Dtypes) {
    const at::Tensor want = floats_of(recorded[name_of(dtype)]["decode_table_hex"]);
    EXPECT_TRUE(same_bits(decoded(all_bytes(), dtype), want)) << dtype;
    EXPECT_TRUE(same_bits(all_bytes().view(dtype).to(at::kFloat), want)) << dtype << ": torch's";
  }
}

// The cast without saturation is torch's own.
TEST(Fp8Casts, F8_2_F8_3_EdgesBecomeTheRecordedBytes) {
  const auto recorded = recorded_json("fp8_casts.json");
  const at::Tensor inputs = floats_of(recorded["inputs_hex"]);
  for (const at::ScalarType dtype : kFp8Dtypes) {
    const auto& vectors = recorded[name_of(dtype)];
    const auto same = [&](const at::Tensor& got, const char* want) {
      return at::equal(with_one_nan(bytes(got), dtype), with_one_nan(bytes_of(vectors[want]), dtype));
    };
    EXPECT_TRUE(same(inputs.to(dtype), "cast_bytes")) << dtype;
    EXPECT_TRUE(same(cast_to_fp8(inputs, dtype), "sat_bytes")) << dtype;
    EXPECT_EQ(fp8_max(dtype), vectors["max"].get<float>());
  }
}

TEST(Fp8Casts, F8_3_WhatIsTooLargeSaturatesAndNaNStays) {
  const at::Tensor x = torch::tensor({kInf, -kInf, kNaN, 1e9F, -464.5F});
  const at::Tensor e4m3 = cast_to_fp8(x, at::kFloat8_e4m3fn).to(at::kFloat),
                   e5m2 = cast_to_fp8(x, at::kFloat8_e5m2).to(at::kFloat);
  EXPECT_TRUE(same_bits(e4m3, torch::tensor({448.0F, -448.0F, kNaN, 448.0F, -448.0F})));
  EXPECT_TRUE(same_bits(e5m2, torch::tensor({57344.0F, -57344.0F, kNaN, 57344.0F, -448.0F})));
}

TEST(Fp8Casts, F8_4_TiesGoToTheEvenNumber) {
  const at::Tensor got =
      cast_to_fp8(torch::tensor({17.0F, 19.0F, 464.0F, 0x1p-10F, -0x1p-10F}), at::kFloat8_e4m3fn)
          .to(at::kFloat);
  EXPECT_TRUE(same_bits(got, torch::tensor({16.0F, 20.0F, 448.0F, 0.0F, -0.0F})));
  EXPECT_EQ(torch::tensor(464.0F).to(at::kFloat8_e4m3fn).to(at::kFloat).item<float>(), 448) << "torch's";
  EXPECT_EQ(cast_to_fp8(torch::tensor(1.125F), at::kFloat8_e5m2).to(at::kFloat).item<float>(), 1);
}

TEST(Fp8Casts, F8_5_EveryFiniteByteSurvives) {
  for (const at::ScalarType dtype : kFp8Dtypes) {
    const at::Tensor values = decoded(all_bytes(), dtype), finite = values.isfinite();
    EXPECT_TRUE(
        at::equal(bytes(cast_to_fp8(values, dtype)).masked_select(finite), all_bytes().masked_select(finite)))
        << dtype;
  }
}

}  // namespace
}  // namespace mantissa::casts_test
