#include <cstdlib>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/low_bit_internal.h"
#include "mantissa/kernels/aten/tensors_internal.h"
#include "mantissa/kernels/cpu/quantized4.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::low_bit_test {
namespace {

using kernels::Product4;
using kernels::ProductInt8;
using test::same_bits;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kHalf, at::kBFloat16};

/// The kernels that this CPU can choose from.
std::vector<std::string> kernel_names() {
  std::vector<std::string> names = {"libtorch"};
  for (const CpuTier tier : cpu_tiers())
    if (cpu_features().includes(features_of(tier))) names.push_back(tier_name(tier));
  return names;
}

/// Restores the pins of this program's tests: see choice_test.cpp.
class LowBitProducts : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(1); }
  void TearDown() override {
    unsetenv("MANTISSA_CPU_KERNELS");
    pin_cpu_kernels(tier_name(cpu_tier()));
  }
};

/// A weight [48, 128] in NF4, and its values.
struct Weight {
  at::Tensor codes = at::empty({48 * 128 / 2}, at::kByte), absmax = at::empty({48 * 2}, at::kFloat),
             values = at::empty({48, 128}, at::kFloat);

  Weight() {
    const at::Tensor w = at::randn({48, 128});
    kernels::cpu::quantize4(
        {w.const_data_ptr(), kernels::Element::kFloat32, w.numel(), 64, kernels::Code4::kNF4,
         codes.mutable_data_ptr<uint8_t>(), absmax.mutable_data_ptr<float>()},
        kernels::cpu::quantized4_build());
    kernels::cpu::dequantize4({codes.const_data_ptr<uint8_t>(), absmax.const_data_ptr<float>(), w.numel(), 64,
                               kernels::Code4::kNF4, values.mutable_data_ptr(), kernels::Element::kFloat32},
                              kernels::cpu::quantized4_build());
  }
};

at::Tensor product4(const at::Tensor& a, const Weight& w, bool transposed, const at::Tensor& bias) {
  const at::Tensor out = at::empty({a.size(0), transposed ? 48 : 128}, a.options());
  Product4 p;
  p.m = a.size(0);
  p.a = matrix(a.const_data_ptr(), a);
  p.weight = {w.codes.const_data_ptr<uint8_t>(), w.absmax.const_data_ptr<float>(), 48, 128, 64};
  p.transposed = transposed;
  if (bias.defined()) p.addend = {bias.const_data_ptr(), element_of(bias.scalar_type()), 0, 1};
  p.out = matrix(out.mutable_data_ptr(), out);
  kernels::aten::low_bit::product4(p);
  return out;
}

TEST_F(LowBitProducts, EveryKernelMultipliesBy4BitWeights) {
  const Weight w;
  for (const auto dtype : kDtypes)
    for (const int64_t rows : {1, 3, 40})
      for (const bool transposed : {true, false})
        for (const bool has_bias : {true, false}) {
          // Every other column of a wider matrix.
          const at::Tensor a =
              at::randn({rows, transposed ? 256 : 96}).to(dtype).slice(1, 0, std::nullopt, 2);
          const at::Tensor bias = has_bias ? at::randn({transposed ? 48 : 128}).to(dtype) : at::Tensor();
          const at::Tensor factor = transposed ? w.values.t() : w.values;
          at::Tensor exact = a.to(at::kDouble).mm(factor.to(at::kDouble));
          if (has_bias) exact += bias;
          const double bound = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 4e-3 : 3e-2;
          for (const std::string& kernel : kernel_names()) {
            pin_cpu_kernels(kernel);
            const at::Tensor got = product4(a, w, transposed, bias);
            EXPECT_TRUE(at::allclose(got.to(at::kDouble), exact, 0, bound * exact.abs().max().item<double>()))
                << kernel << ", " << dtype << ", " << rows << " rows, " << transposed << has_bias;
          }
        }
}

at::Tensor product_int8(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias,
                        at::ScalarType dtype, bool sums) {
  const at::Tensor scales = at::arange(1, 1 + std::max(a.size(0), b.size(0)), at::kFloat) / 3,
                   out = at::empty({a.size(0), b.size(0)}, sums ? at::kInt : dtype);
  ProductInt8 p = product_of_codes(a, b);
  p.a_scales = p.b_scales = scales.const_data_ptr<float>();
  p.scale = 1.0F / (127 * 127);
  if (bias.defined()) p.addend = {bias.const_data_ptr(), element_of(bias.scalar_type()), 0, 1};
  if (sums) {
    p.sums = out.mutable_data_ptr<int32_t>();
  } else {
    p.out = matrix(out.mutable_data_ptr(), out);
  }
  kernels::aten::low_bit::product_int8(p);
  return out;
}

TEST_F(LowBitProducts, EveryKernelGivesTheSameBitsForInt8) {
  for (const int64_t k : {1, 2, 77, 2500})
    for (const int64_t rows : {1, 9, 40}) {
      // Rows with a gap, and sums beyond the 24 bits of float32.
      const at::Tensor a = at::randint(90, 128, {rows, k + 3}, at::kChar).narrow(1, 0, k),
                       b = at::randint(-128, -90, {13, k}, at::kChar).clamp_min(-127);
      const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble).t()).to(at::kInt);
      pin_cpu_kernels("generic");
      std::vector<at::Tensor> expected;
      for (const auto dtype : kDtypes)
        for (const at::Tensor& bias : {at::Tensor(), at::linspace(-3, 3, 13).to(dtype)})
          expected.push_back(product_int8(a, b, bias, dtype, false));
      for (const std::string& kernel : kernel_names()) {
        pin_cpu_kernels(kernel);
        SCOPED_TRACE(kernel + ", " + std::to_string(rows) + " rows of " + std::to_string(k));
        EXPECT_TRUE(at::equal(product_int8(a, b, {}, at::kFloat, true), exact));
        size_t i = 0;
        for (const auto dtype : kDtypes)
          for (const at::Tensor& bias : {at::Tensor(), at::linspace(-3, 3, 13).to(dtype)})
            EXPECT_TRUE(same_bits(product_int8(a, b, bias, dtype, false), expected[i++])) << dtype;
      }
    }
}

/// libtorch's product needs the dense weight, and ours does not. (The bits may be the same, in the order of SSE4.2's sums.)
TEST_F(LowBitProducts, LibtorchComputesThemWhereTheEnvironmentSaysSo) {
  if (std::getenv("MANTISSA_CPU_KERNELS") != nullptr) GTEST_SKIP() << "MANTISSA_CPU_KERNELS is set already";
  const Weight w;
  const at::Tensor a = at::randn({40, 128});
  const auto is_by_libtorch = [&] {
    const auto live = std::make_shared<test::LiveBytes>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
    product4(a, w, true, {});
    return live->peak >= static_cast<int64_t>(w.values.nbytes());
  };
  pin_cpu_kernels("libtorch");
  EXPECT_TRUE(is_by_libtorch());
  pin_cpu_kernels("generic");
  EXPECT_FALSE(is_by_libtorch());
  ASSERT_EQ(setenv("MANTISSA_CPU_KERNELS", "0", 1), 0);
  EXPECT_TRUE(is_by_libtorch());
}

TEST_F(LowBitProducts, ACallHasAFamily) {
  Product4 p;
  p.m = 3;
  p.weight = {nullptr, nullptr, 64, 128, 64};
  EXPECT_EQ(family_of(p), KernelFamily::kFewRows4Bit);
  p.weight.block = 256;  // rows are no whole blocks
  EXPECT_EQ(family_of(p), KernelFamily::kProduct4Bit);
  p.weight.block = 64;
  p.m = 4;
  EXPECT_EQ(family_of(p), KernelFamily::kProduct4Bit);
  p.m = 95;
  EXPECT_EQ(family_of(p), KernelFamily::kProduct4Bit);
  p.m = 96;
  EXPECT_EQ(family_of(p), KernelFamily::kLargeProduct4Bit);
  p.transposed = false;
  EXPECT_EQ(family_of(p), KernelFamily::kLargeGradient4Bit);
  p.m = 1;
  EXPECT_EQ(family_of(p), KernelFamily::kGradient4Bit);
}

TEST_F(LowBitProducts, PinsFollowTheBuildsThatExist) {
  if (!cpu_features().includes(features_of(CpuTier::kAvx512Bf16))) GTEST_SKIP() << "no AVX512-BF16 here";
  const auto tier = [](KernelFamily family, kernels::Element element) {
    return tier_name(*kernel_for(family, element).tier);
  };
  pin_cpu_kernels("avx512_bf16");
  EXPECT_EQ(tier(KernelFamily::kProduct4Bit, kernels::Element::kBFloat16), "avx512_bf16");
  EXPECT_EQ(tier(KernelFamily::kProduct4Bit, kernels::Element::kFloat32), "avx512");
  EXPECT_EQ(tier(KernelFamily::kFewRows4Bit, kernels::Element::kBFloat16), "avx512");
  EXPECT_EQ(tier(KernelFamily::kProductInt8, kernels::Element::kFloat32), "avx512_vnni");
  EXPECT_EQ(tier(KernelFamily::kGelu, kernels::Element::kBFloat16), "avx512");
  if (!cpu_features().includes(features_of(CpuTier::kAmxBf16))) return;
  pin_cpu_kernels("amx_bf16");
  for (const auto element :
       {kernels::Element::kFloat32, kernels::Element::kBFloat16, kernels::Element::kFloat16}) {
    for (const auto family : {KernelFamily::kProduct4Bit, KernelFamily::kLargeProduct4Bit,
                              KernelFamily::kGradient4Bit, KernelFamily::kLargeGradient4Bit})
      EXPECT_EQ(tier(family, element), "amx_bf16");
    EXPECT_EQ(tier(KernelFamily::kFewRows4Bit, element), "avx512");
  }
  EXPECT_EQ(tier(KernelFamily::kProduct, kernels::Element::kBFloat16), "avx512_bf16");
}

}  // namespace
}  // namespace mantissa::low_bit_test
