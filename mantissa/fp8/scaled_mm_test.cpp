// Products by at::_scaled_mm. libtorch's CPU build computes those with one scale for each tensor, so that they run here; of
// the others, the arguments are read here as cuBLAS's documentation describes them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>

#include "mantissa/fp8/device_path_internal.h"
#include "mantissa/fp8/linear_test_support_internal.h"
#include "mantissa/fp8/scaled_mm_internal.h"
#include "mantissa/fp8/test_support_internal.h"

namespace mantissa::fp8::scaled_mm_test {
namespace {

template <class F>
auto on(DevicePath path, const F& f) {
  const ForcedPath forced(path);
  return f();
}

struct Case {
  at::Tensor x, w, b, dy;
};

Case make_case(int64_t tokens, int64_t in, int64_t out, at::ScalarType dtype) {
  torch::manual_seed(3);
  return {torch::randn({tokens, in}).to(dtype), torch::randn({out, in}).to(dtype),
          torch::randn({out}).to(dtype), torch::randn({tokens, out}).to(dtype)};
}

Pass pass_on(DevicePath path, const Case& c, const Fp8Recipe& recipe) {
  return on(path, [&] {
    const auto state = state_of(recipe, 7);
    for (int step = 0; step < 2; ++step) {
      pass(c.x, c.w, c.b, c.dy, state);
      state->update_scales();
    }
    return pass(c.x, c.w, c.b, c.dy, state);
  });
}

/// Both sum the same products in another order: within k 2^-24 of the sum of magnitudes, which is at most
/// |a| |b|, and one rounding of the result. A bias that is rounded first adds half a unit of its last place.
void expect_close(const at::Tensor& got, const at::Tensor& want, const at::Tensor& a, const at::Tensor& b,
                  const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  ASSERT_EQ(got.scalar_type(), want.scalar_type()) << what;
  if (got.numel() == 0) return;
  const double unit = got.scalar_type() == at::kFloat ? 0 : got.scalar_type() == at::kHalf ? 0x1p-10 : 0x1p-7;
  // A cast moves a value by a quarter at most (E5M2), so quantized magnitudes are at most 1.25 times theirs.
  const at::Tensor sums = at::mm(a.to(at::kDouble).abs(), b.to(at::kDouble).abs()) * 1.6;
  const at::Tensor bound =
      sums * (static_cast<double>(a.size(1)) * 0x1p-23) + want.to(at::kDouble).abs() * unit + 1e-6;
  const at::Tensor error = (got.to(at::kDouble) - want.to(at::kDouble)).abs();
  EXPECT_TRUE((error <= bound).all().item<bool>()) << what << ": " << (error / bound).max().item<double>();
}

void expect_close(const Pass& got, const Pass& want, const Case& c, const std::string& what) {
  expect_close(got.y, want.y, c.x, c.w.t(), what + " y");
  expect_close(got.dx, want.dx, c.dy, c.w, what + " dx");
  expect_close(got.dw, want.dw, c.dy.t(), c.x, what + " dw");
  EXPECT_TRUE(got.db.equal(want.db)) << what;
}

constexpr int64_t kShapes[][3] = {{16, 32, 48},  {5, 7, 3},  {1, 1, 1}, {130, 65, 33},
                                  {17, 128, 16}, {0, 8, 16}, {4, 0, 8}, {3, 5, 0}};

TEST(ScaledMm, LayersOfAnyShapeAgreeWithTheEmulation) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const auto& [tokens, in, out] : kShapes)
      for (const Fp8Recipe& recipe :
           {Fp8Recipe(DelayedScaling{.amax_history_len = 4}), Fp8Recipe(Float8CurrentScaling{}),
            Fp8Recipe(Float8CurrentScaling{.fp8_format = Fp8Format::kE4M3})}) {
        const Case c = make_case(tokens, in, out, dtype);
        const std::string what = c10::str(recipe_name(recipe), ' ', tokens, 'x', in, 'x', out, ' ', dtype);
        const Pass want = pass_on(DevicePath::kCpuKernels, c, recipe);
        expect_close(pass_on(DevicePath::kNative, c, recipe), want, c, what);
        expect_close(pass_on(DevicePath::kOperators, c, recipe), want, c, what + " by operators");
      }
}

TEST(ScaledMm, AutocastLeavesTheProductsOfOperatorsInFloat32) {
  const Case c = make_case(64, 512, 32, at::kFloat);
  for (const auto& [name, recipe] : recipes()) {
    const Pass want = pass_on(DevicePath::kOperators, c, recipe);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const Pass got = pass_on(DevicePath::kOperators, c, recipe);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    using test::same_bits;
    EXPECT_TRUE(same_bits(got.y, want.y) && same_bits(got.dx, want.dx) && same_bits(got.dw, want.dw)) << name;
  }
}

TEST(ScaledMm, EveryRecipeIsEmulatedByOperators) {
  for (const auto& [name, recipe] : recipes())
    for (const auto& [tokens, in, out] : kShapes) {
      const Case c = make_case(tokens, in, out, at::kBFloat16);
      expect_close(pass_on(DevicePath::kOperators, c, recipe), pass_on(DevicePath::kCpuKernels, c, recipe), c,
                   c10::str(name, ' ', tokens, 'x', in, 'x', out));
    }
}

TEST(ScaledMm, NanAndInfAreThoseOfTheEmulation) {
  Case c = make_case(6, 16, 16, at::kFloat);
  c.x[1][2] = kNaN, c.x[3][4] = kInf, c.dy[2][2] = kNaN;
  for (const Fp8Recipe& recipe : {Fp8Recipe(DelayedScaling{}), Fp8Recipe(Float8CurrentScaling{})}) {
    const Pass want = pass_on(DevicePath::kCpuKernels, c, recipe),
               got = pass_on(DevicePath::kNative, c, recipe);
    EXPECT_TRUE(got.y.isnan().equal(want.y.isnan()));
    EXPECT_TRUE(got.y[1].isnan().all().item<bool>());
    EXPECT_FALSE(got.y[3].isnan().any().item<bool>()) << "inf is saturated";
    EXPECT_TRUE(got.dx.isnan().equal(want.dx.isnan()));
    EXPECT_TRUE(got.dw.isnan().equal(want.dw.isnan()));
    EXPECT_TRUE(at::allclose(got.y, want.y, 1e-5, 1e-5, /*equal_nan=*/true));
  }
}

TEST(ScaledMm, AmaxesAndScalesAreThoseOfTheEmulation) {
  const Case c = make_case(5, 24, 40, at::kBFloat16);
  const auto states = [&](DevicePath path) {
    return on(path, [&] {
      const auto state = state_of(DelayedScaling{.amax_history_len = 4});
      for (int step = 0; step < 3; ++step) pass(c.x, c.w, c.b, c.dy, state), state->update_scales();
      return state;
    });
  };
  const auto want = states(DevicePath::kCpuKernels), got = states(DevicePath::kNative);
  EXPECT_TRUE(got->forward.scale.equal(want->forward.scale));
  EXPECT_TRUE(got->backward.scale.equal(want->backward.scale));
  EXPECT_TRUE(got->forward.amax_history.equal(want->forward.amax_history));
  EXPECT_TRUE(got->backward.amax_history.equal(want->backward.amax_history));
}

// What a wrong weight would do on a device: there are no kept codes, so a changed weight is never multiplied as it was.
TEST(ScaledMm, AChangedWeightIsQuantizedAnew) {
  const Case c = make_case(4, 16, 16, at::kFloat);
  const auto state = state_of(DelayedScaling{.amax_history_len = 4});
  on(DevicePath::kOperators, [&] {
    const at::Tensor before = linear_fp8(c.x, c.w, {}, state, true);
    const float amax = state->forward.amax_history[0][1].item<float>();
    const at::Tensor larger = c.w * 2, y = linear_fp8(c.x, larger, {}, state, false);
    // Subnormal codes round differently.
    EXPECT_TRUE(at::allclose(y, before * 2, 0.01, 0.1));
    EXPECT_EQ(state->forward.amax_history[0][1].item<float>(), amax) << "false leaves the weight's history";
    return 0;
  });
}

/// Reads a matrix and the scales of its blocks as the arguments describe them.
at::Tensor value(const at::Tensor& codes, const at::Tensor& scales) {
  const int64_t row = (codes.size(0) + scales.size(0) - 1) / scales.size(0),
                col = (codes.size(1) + scales.size(1) - 1) / scales.size(1);
  const at::Tensor whole =
      scales.repeat_interleave(row == 1 ? 1 : 128, 0).repeat_interleave(col == 1 ? 1 : 128, 1);
  return codes.to(at::kFloat) * whole.narrow(0, 0, codes.size(0)).narrow(1, 0, codes.size(1));
}

Fp8Factor factor(const at::Tensor& x, Fp8Block block) {
  const bool is_transposed = block == Fp8Block::k128x1;
  const at::Tensor whole =
      at::constant_pad_nd(x, {0, block == Fp8Block::k128x1 ? 0 : (128 - x.size(1) % 128) % 128, 0,
                              block == Fp8Block::k1x128 ? 0 : (128 - x.size(0) % 128) % 128});
  const QuantizedFp8Blocks blocks = quantize_fp8_blocks(whole, at::kFloat8_e4m3fn, block);
  return is_transposed ? Fp8Factor{blocks, x.size(1), x.size(0), true}
                       : Fp8Factor{blocks, x.size(0), x.size(1)};
}

void expect_layout_of_blocks(const Fp8Factor& a, const Fp8Factor& b, bool is_square) {
  const ScaledMmArguments arguments = scaled_mm_arguments(a, b, /*fast_accumulation=*/true);
  EXPECT_FALSE(arguments.fast_accumulation) << "sums of blocks are always promoted";
  const int64_t m = arguments.self.size(0), k = arguments.self.size(1), n = arguments.mat2.size(1);
  EXPECT_EQ(m % 16, 0);
  EXPECT_EQ(n % 16, 0);
  EXPECT_EQ(k % (is_square ? 512 : 128), 0);
  EXPECT_EQ(arguments.self.strides(), at::IntArrayRef({k, 1}));
  EXPECT_EQ(arguments.mat2.strides(), at::IntArrayRef({1, k}));
  EXPECT_EQ(arguments.scale_a.sizes(), at::IntArrayRef({m, k / 128}));
  EXPECT_TRUE(arguments.scale_a.t().is_contiguous()) << "columns side by side";
  const at::Tensor scale_b = arguments.scale_b.t();
  EXPECT_EQ(scale_b.sizes(), at::IntArrayRef({is_square ? (n + 127) / 128 : n, k / 128}));
  EXPECT_TRUE((is_square ? scale_b : scale_b.t()).is_contiguous());
  const at::Tensor got =
      at::mm(value(arguments.self, arguments.scale_a), value(arguments.mat2.t(), scale_b).t());
  const at::Tensor want = product(a, b, {}, at::kFloat);
  EXPECT_TRUE(at::allclose(got.narrow(0, 0, a.rows).narrow(1, 0, b.rows), want, 1e-4, 1e-4));
}

TEST(ScaledMm, BlocksLieAsTensorCoresReadThem) {
  torch::manual_seed(4);
  for (const auto& [m, k, n] : {std::array<int64_t, 3>{5, 300, 200}, {1, 64, 16}, {130, 512, 129}}) {
    const at::Tensor x = torch::randn({m, k}), w = torch::randn({n, k}), dy = torch::randn({m, n});
    const Fp8Factor weight = factor(w, Fp8Block::k128x128);
    expect_layout_of_blocks(factor(x, Fp8Block::k1x128), weight, true);
    expect_layout_of_blocks(factor(dy, Fp8Block::k1x128), transposed(weight), true);
    expect_layout_of_blocks(factor(dy, Fp8Block::k128x1), factor(x, Fp8Block::k128x1), false);
  }
}

TEST(ScaledMm, ExponentsLieAsTensorCoresReadThem) {
  const at::Tensor plain = torch::arange(130 * 5).remainder(251).to(at::kByte).view({130, 5});
  const at::Tensor got = bytes(swizzled(plain.view(at::kFloat8_e8m0fnu)));
  EXPECT_EQ(got.sizes(), at::IntArrayRef({256, 8}));
  const at::Tensor flat = got.view({-1});
  const auto at_place = [&](int64_t row, int64_t col) {  // as cuBLAS documents the layout of 128 x 4 tiles
    const int64_t tile = row / 128 * 2 + col / 4, outer = row % 128, inner = col % 4;
    return flat[tile * 512 + outer % 32 * 16 + outer / 32 * 4 + inner].item<int64_t>();
  };
  for (const int64_t row : {0, 1, 31, 32, 33, 64, 96, 127, 128, 129})
    for (int64_t col = 0; col < 5; ++col)
      EXPECT_EQ(at_place(row, col), plain[row][col].item<int64_t>()) << row << ", " << col;
  EXPECT_EQ(at_place(200, 0), 0) << "padding";
}

TEST(ScaledMm, MXFP8IsPaddedAndHasAnExponentForEachBlock) {
  torch::manual_seed(5);
  const at::Tensor x = torch::randn({6, 64}), w = torch::randn({32, 64}), dy = torch::randn({32, 6});
  const Fp8Factor a = {quantize_mxfp8(x), 6, 64},
                  square = {quantize_mxfp8(w, at::kFloat8_e4m3fn, true), 32, 64};
  const ScaledMmArguments forward = scaled_mm_arguments(a, square, true);
  EXPECT_EQ(forward.self.sizes(), at::IntArrayRef({16, 64}));
  EXPECT_EQ(forward.scale_a.sizes(), at::IntArrayRef({128, 4}));
  EXPECT_EQ(forward.scale_b.sizes(), at::IntArrayRef({128, 4}));
  // Row 1 is the second group of 16 bytes; its first two numbers are those of the first two blocks.
  const auto& quantized = std::get<QuantizedMXFP8>(square.quantized);
  const at::Tensor first = bytes(forward.scale_b).view({-1}).narrow(0, 16, 2);
  EXPECT_TRUE(first.equal(bytes(quantized.exponents)[0])) << "rows of a square share its exponent";
  const Fp8Factor columns = {quantize_mxfp8_columns(dy), 6, 32, true};
  const ScaledMmArguments backward = scaled_mm_arguments(columns, columns, false);
  EXPECT_EQ(backward.self.sizes(), at::IntArrayRef({16, 32}));
  EXPECT_EQ(bytes(backward.scale_a).view({-1})[16].item<int64_t>(),
            bytes(std::get<QuantizedMXFP8>(columns.quantized).exponents)[0][1].item<int64_t>());
}

TEST(ScaledMm, NVFP4IsNotMultipliedNatively) {
  const Fp8Factor a = {quantize_nvfp4(torch::randn({16, 16})), 16, 16};
  EXPECT_FALSE(has_scaled_mm(a, a));
}

}  // namespace
}  // namespace mantissa::fp8::scaled_mm_test
