// The casts by libtorch's operators, on the CPU, where they must have the bits of the kernels.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mantissa/core/host_reads_internal.h"
#include "mantissa/fp8/block_scaling.h"
#include "mantissa/fp8/delayed_scaling.h"
#include "mantissa/fp8/device_path_internal.h"
#include "mantissa/fp8/hadamard.h"
#include "mantissa/fp8/linear_test_support_internal.h"
#include "mantissa/fp8/mxfp8.h"
#include "mantissa/fp8/nvfp4.h"
#include "mantissa/fp8/quantized_fp8.h"
#include "mantissa/fp8/test_support_internal.h"

namespace mantissa::fp8::operators_test {
namespace {

/// Returns f(), computed by operators.
template <class F>
auto by_operators(const F& f) {
  const ForcedPath forced(DevicePath::kOperators);
  return f();
}

at::Tensor codes(const at::Tensor& tensor) {
  const bool is_fp8 = tensor.scalar_type() == at::kFloat8_e4m3fn || tensor.scalar_type() == at::kFloat8_e5m2;
  return is_fp8 ? with_one_nan(bytes(tensor), tensor.scalar_type()) : tensor;
}

void expect_same(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  ASSERT_EQ(got.scalar_type(), want.scalar_type()) << what;
  const at::Tensor a = codes(got), b = codes(want);
  const at::ScalarType bits = a.element_size() == 4 ? at::kInt : at::kByte;
  // NaN has many bits, and none of them matters.
  const auto as_bits = [&](const at::Tensor& x) {
    return (x.is_floating_point() && x.element_size() == 4 ? x.masked_fill(x.isnan(), kNaN) : x)
        .contiguous()
        .view(bits);
  };
  EXPECT_TRUE(as_bits(a).equal(as_bits(b))) << what << '\n' << as_bits(a).ne(as_bits(b)).sum();
}

/// Matrices of 256 x 128 values: of many magnitudes, with inf and NaN, zero, tiny, without rows.
std::vector<std::pair<std::string, at::Tensor>> matrices(at::ScalarType dtype) {
  torch::manual_seed(1);
  at::Tensor special = wide({256, 128});
  special[3][5] = kInf, special[200][7] = -kInf, special[17][64] = kNaN, special[17][65] = -kNaN;
  return {{"wide", wide({256, 128}).to(dtype)},
          {"special", special.to(dtype)},
          {"zero", torch::zeros({256, 128}).mul(-1).to(dtype)},
          {"tiny", (torch::randn({256, 128}) * 1e-39).to(dtype)},
          {"without rows", torch::zeros({0, 128}).to(dtype)}};
}

template <class F>
void for_each_matrix(const F& f) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const auto& [name, x] : matrices(dtype)) f(x, c10::str(name, " in ", dtype));
}

TEST(Operators, CastsHaveTheBitsOfTheKernels) {
  for_each_matrix([](const at::Tensor& x, const std::string& name) {
    for (const at::ScalarType dtype : kFp8Dtypes)
      for (const float scale : {1.0F, 0.37F, 3e38F, 1e-40F}) {
        at::Tensor amax = torch::tensor(0.5F), other = amax.clone();
        const auto cast = [&](const at::Tensor& to) {
          return quantize_fp8(x, dtype, torch::tensor(scale), to);
        };
        const QuantizedFp8 want = cast(amax), got = by_operators([&] { return cast(other); });
        expect_same(got.codes, want.codes, name);
        expect_same(got.scale_inv, want.scale_inv, name);
        expect_same(other, amax, name);
        expect_same(by_operators([&] { return dequantize_fp8(got); }), dequantize_fp8(want), name);
      }
  });
}

TEST(Operators, CurrentScalesHaveTheBitsOfTheKernels) {
  for_each_matrix([](const at::Tensor& x, const std::string& name) {
    for (const at::ScalarType dtype : kFp8Dtypes)
      for (const Fp8ScaleOptions& options :
           {Fp8ScaleOptions{}, Fp8ScaleOptions{.power_of_two = true}, Fp8ScaleOptions{.epsilon = 1e-3F}}) {
        const auto cast = [&] { return quantize_fp8_current(x, dtype, options); };
        const QuantizedFp8 want = cast(), got = by_operators(cast);
        expect_same(got.codes, want.codes, name);
        expect_same(got.scale_inv, want.scale_inv, name);
      }
  });
}

TEST(Operators, BlocksHaveTheBitsOfTheKernels) {
  for_each_matrix([](const at::Tensor& x, const std::string& name) {
    for (const at::ScalarType dtype : kFp8Dtypes)
      for (const Fp8Block block : {Fp8Block::k1x128, Fp8Block::k128x128, Fp8Block::k128x1})
        for (const bool power_of_two : {false, true}) {
          const auto cast = [&] {
            return quantize_fp8_blocks(x, dtype, block, Float8BlockScaling{.power_of_two = power_of_two});
          };
          const QuantizedFp8Blocks want = cast(), got = by_operators(cast);
          expect_same(got.codes, want.codes, name);
          expect_same(got.scale_inv, want.scale_inv, name);
          expect_same(by_operators([&] { return dequantize_fp8(got); }), dequantize_fp8(want), name);
        }
  });
}

TEST(Operators, MXFP8HasTheBitsOfTheKernels) {
  for_each_matrix([](const at::Tensor& x, const std::string& name) {
    for (const at::ScalarType dtype : kFp8Dtypes)
      for (int form = 0; form < 3; ++form) {
        const auto cast = [&] {
          return form == 2 ? quantize_mxfp8_columns(x, dtype) : quantize_mxfp8(x, dtype, form == 1);
        };
        const QuantizedMXFP8 want = cast(), got = by_operators(cast);
        expect_same(got.codes, want.codes, name);
        expect_same(bytes(got.exponents), bytes(want.exponents), name);
        expect_same(by_operators([&] { return dequantize_fp8(got); }), dequantize_fp8(want), name);
      }
  });
}

TEST(Operators, NVFP4HasTheBitsOfTheKernels) {
  const std::optional<NVFP4Draws> draws[] = {
      std::nullopt,
      NVFP4Draws{.seed = 0x123456789abcdef0, .stream = (int64_t{3} << 33) + 5, .offset = uint64_t{16} << 32}};
  for_each_matrix([&](const at::Tensor& x, const std::string& name) {
    for (const auto& each : draws)
      for (int form = 0; form < 3; ++form) {
        const QuantizeNVFP4Options options = {form == 1, each, form == 2};
        const auto cast = [&] { return quantize_nvfp4(x, options); };
        const QuantizedNVFP4 want = cast(), got = by_operators(cast);
        expect_same(got.codes, want.codes, name);
        expect_same(bytes(got.block_scale), bytes(want.block_scale), name);
        expect_same(got.scale, want.scale, name);
        expect_same(by_operators([&] { return dequantize_fp8(got); }), dequantize_fp8(want), name);
      }
  });
}

TEST(Operators, HadamardTransformsHaveTheBitsOfTheKernels) {
  for_each_matrix([](const at::Tensor& x, const std::string& name) {
    for (const auto transform :
         {hadamard_transform, inverse_hadamard_transform, hadamard_transform_columns}) {
      const auto of_x = [&] { return transform(x); };
      expect_same(by_operators(of_x), of_x(), name);
    }
  });
}

TEST(Operators, HistoriesMoveOnWithTheBitsOfTheHost) {
  torch::manual_seed(2);
  const auto most = [](const at::Tensor& history) { return std::get<0>(history.max(0)); };
  for (DelayedScaling recipe :
       {DelayedScaling{.amax_history_len = 1}, DelayedScaling{.amax_history_len = 2},
        DelayedScaling{.amax_history_len = 5, .margin = 3},
        DelayedScaling{.amax_history_len = 5, .margin = -120},
        DelayedScaling{.amax_history_len = 4, .amax_compute_algo = AmaxComputeAlgo::kMostRecent},
        DelayedScaling{.amax_history_len = 4, .amax_compute = most}}) {
    DelayedScalingState host = delayed_scaling_state(recipe, 7), operators = delayed_scaling_state(recipe, 7);
    for (int step = 0; step < 12; ++step) {
      at::Tensor amax = torch::rand({7}).mul(20).exp2();
      amax[0] = 0, amax[1] = step == 3 ? kInf : 1.0F, amax[2] = step == 4 ? kNaN : 2.0F, amax[3] = 1e-44F;
      host.amax_history[0].copy_(amax), operators.amax_history[0].copy_(amax);
      update_scales({&host}, at::kFloat8_e4m3fn, recipe);
      by_operators([&] {
        update_scales({&operators}, at::kFloat8_e4m3fn, recipe);
        return 0;
      });
      expect_same(operators.scale, host.scale, c10::str("scales of step ", step));
      expect_same(operators.amax_history, host.amax_history, c10::str("history of step ", step));
    }
  }
}

TEST(Operators, NoStepOfAnyRecipeReadsFromTheDevice) {
  for (const auto& [name, recipe] : recipes()) {
    const ForcedPath forced(DevicePath::kOperators);
    const auto state = state_of(recipe);
    const auto step = [&] {
      pass(torch::randn({5, 24}), torch::randn({7, 24}), torch::randn({7}), torch::randn({5, 7}), state);
      state->update_scales();
    };
    step();  // the first one asks whether there are scales now
    const HostReads reads;
    step();
    EXPECT_EQ(reads.count(), 0) << name;
  }
}

}  // namespace
}  // namespace mantissa::fp8::operators_test
