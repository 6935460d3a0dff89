#include "mantissa/amp/clip_grad.h"

#include <cmath>
#include <limits>
#include <vector>

#include "mantissa/amp/clip_grad_internal.h"
#include "mantissa/core/device.h"

namespace mantissa::clip_grad_test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

at::Tensor with_grad(const at::Tensor& gradient) {
  auto parameter = torch::zeros_like(gradient).requires_grad_();
  parameter.mutable_grad() = gradient.clone();
  return parameter;
}

std::vector<at::Tensor> clones(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> out;
  for (const auto& p : parameters)
    out.push_back(p.grad().defined() ? with_grad(p.grad()) : torch::zeros_like(p).requires_grad_());
  return out;
}

std::vector<at::Tensor> random_parameters() {
  torch::manual_seed(7);
  auto no_grad = torch::zeros({3}).requires_grad_();
  return {with_grad(torch::randn({17, 5})), no_grad, with_grad(torch::randn({1})),
          with_grad(torch::randn({4, 3, 2})), with_grad(torch::randn({1001}))};
}

void expect_bit_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].grad().defined(), b[i].grad().defined());
    if (!a[i].grad().defined()) continue;
    EXPECT_TRUE(at::equal(a[i].grad(), b[i].grad())) << "parameter " << i;
  }
}

// Only powers of two: for other values libtorch's division and Python's product with the reciprocal round
// differently.
TEST(ClipGradNorm, CL08_EqualsLibtorchBitForBit) {
  for (const double norm_type : {1.0, 2.0, 3.0, 0.5, kInf}) {
    for (const double max_norm : {0.25, 1.0, 1024.0}) {
      for (const auto dtype : {at::kFloat, at::kDouble}) {
        auto ours = random_parameters();
        for (auto& p : ours) p = p.grad().defined() ? with_grad(p.grad().to(dtype)) : p;
        const auto theirs = clones(ours);
        const auto total = clip_grad_norm_(ours, max_norm, norm_type);
        EXPECT_EQ(total.item<double>(), torch::nn::utils::clip_grad_norm_(theirs, max_norm, norm_type));
        EXPECT_EQ(total.dim(), 0);
        expect_bit_equal(ours, theirs);
      }
    }
  }
}

/// Returns what Python's clip_grad_norm_ makes of a gradient on this CPU. A division by the norm would round
/// differently.
at::Tensor clipped_by_python(const at::Tensor& gradient, const at::Tensor& total, double max_norm) {
  return gradient * ((total + 1e-6).reciprocal() * max_norm).clamp_max(1);
}

/// Expects `got` to equal `recorded` up to two last places of `dtype`: the norm's last bits may differ on
/// another CPU.
void expect_near_recorded(double got, double recorded, at::ScalarType dtype) {
  const double last_place = dtype == at::kBFloat16 ? 0x1p-7 : dtype == at::kHalf ? 0x1p-10 : 0x1p-23;
  EXPECT_NEAR(got, recorded, 2 * last_place * std::abs(recorded)) << dtype;
}

// Python printed these numbers for these gradients, with torch 2.11.
TEST(ClipGradNorm, CL01_CL02_PE13_RoundsAsPython) {
  struct Row {
    double norm_type, max_norm, total, first, second;
  };
  const std::vector<Row> rows = {
      {1, 0.7, 0x1.26p+4, 0x1.38138p-5, -0x1.5f15fp-5},
      {1, 0.3, 0x1.26p+4, 0x1.0b7e6ep-6, -0x1.2cee3cp-6},
      {2, 0.7, 0x1.e6075ep+2, 0x1.798d2p-4, -0x1.a8bec4p-4},
      {2, 0.1, 0x1.e6075ep+2, 0x1.af7cb6p-7, -0x1.e56c4cp-7},
      {2, 0.3, 0x1.e6075ep+2, 0x1.439d8ap-5, -0x1.6c113cp-5},
      {3, 0.7, 0x1.869fecp+2, 0x1.d5c328p-4, -0x1.083dc6p-3},
      {3, 0.3, 0x1.869fecp+2, 0x1.92a748p-5, -0x1.c4fc3p-5},
      {kInf, 0.7, 0x1.4p+2, 0x1.1eb84ep-3, -0x1.428f58p-3},
      {kInf, 0.3, 0x1.4p+2, 0x1.eb851ap-5, -0x1.147adep-4},
      {0, 0.3, 2, 0x1.33332ap-3, -0x1.59999p-3},
  };
  for (const auto& row : rows) {
    const std::vector<at::Tensor> gradients = {torch::arange(1, 6).to(at::kFloat),
                                               torch::arange(-3, 3).to(at::kFloat).mul(0.375).view({2, 3})};
    const std::vector<at::Tensor> parameters = {with_grad(gradients[0]), with_grad(gradients[1])};
    SCOPED_TRACE(testing::Message() << row.norm_type << " " << row.max_norm);
    const at::Tensor total = clip_grad_norm_(parameters, row.max_norm, row.norm_type);
    expect_near_recorded(total.item<double>(), row.total, at::kFloat);
    expect_near_recorded(parameters[0].grad()[0].item<double>(), row.first, at::kFloat);
    expect_near_recorded(parameters[1].grad()[0][0].item<double>(), row.second, at::kFloat);
    for (size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(at::equal(parameters[i].grad(), clipped_by_python(gradients[i], total, row.max_norm)));
  }
}

TEST(ClipGradNorm, CL08_MixedDtypesAreGroupedAsInPython) {
  const std::vector<at::ScalarType> dtypes = {at::kHalf, at::kFloat, at::kBFloat16, at::kDouble};
  const std::vector<std::vector<double>> expected = {
      {0x1.89bdc8af59e63p+2, 0x1.df8p-7, 0x1.df5c0ap-6, 0x1.66p-5, 0x1.df5c08bd603fap-5},
      {0x1.89bdc8af59e63p+3, 0x1.df8p-7, 0x1.df5c0cp-6, 0x1.66p-5, 0x1.df5c0b4afcfa7p-5},
      {0x1.274f10f92f0f4p+4, 0x1.df4p-7, 0x1.df5adep-6, 0x1.68p-5, 0x1.df5add7944e14p-5},
      {0x1.89bdc8af59e63p+4, 0x1.df8p-7, 0x1.df5c0cp-6, 0x1.66p-5, 0x1.df5c0c91cb5a6p-5}};
  for (int k = 0; k < 4; ++k) {
    std::vector<at::Tensor> gradients, parameters;
    for (int i = 0; i < 4; ++i) {
      gradients.push_back((torch::tensor({1.f, 2.f, 3.f}) * (i + 1) * (k + 1) * 0.3).to(dtypes[i]));
      parameters.push_back(with_grad(gradients.back()));
    }
    const auto total = clip_grad_norm_(parameters, 0.3);
    EXPECT_EQ(total.scalar_type(), at::kDouble);
    expect_near_recorded(total.item<double>(), expected[k][0], at::kFloat);
    for (int i = 0; i < 4; ++i) {
      expect_near_recorded(parameters[i].grad()[0].item<double>(), expected[k][i + 1], dtypes[i]);
      EXPECT_TRUE(at::equal(parameters[i].grad(), clipped_by_python(gradients[i], total, 0.3))) << k << i;
    }
  }
}

TEST(ClipGradNorm, CL01_GradientsAtTheLimitStillShrink) {
  const auto p = with_grad(torch::tensor({3.f, 4.f}));
  EXPECT_EQ(clip_grad_norm_(p, 5.0).item<float>(), 5.f);
  EXPECT_LT(p.grad()[0].item<float>(), 3.f);
  EXPECT_FLOAT_EQ(p.grad()[0].item<float>(), 2.99999928f);
  EXPECT_TRUE(p.grad().requires_grad() == false);
}

TEST(ClipGradNorm, CL02_NothingToClipGivesZero) {
  const auto p = torch::ones({2}).requires_grad_();
  const auto total = clip_grad_norm_(p, 1.0);
  EXPECT_EQ(total.dim(), 0);
  EXPECT_EQ(total.item<float>(), 0.f);
  EXPECT_EQ(clip_grad_norm_(at::TensorList(), 1.0).item<float>(), 0.f);
  clip_grad_value_(p, 1.0);
  clip_grad_value_(at::TensorList(), 1.0);
}

TEST(ClipGradNorm, CL03_NonFiniteGradientsBecomeNanAndZero) {
  auto p = with_grad(torch::tensor({static_cast<float>(kInf), 2.f}));
  EXPECT_EQ(clip_grad_norm_(p, 1.0).item<double>(), kInf);
  EXPECT_TRUE(std::isnan(p.grad()[0].item<float>()));
  EXPECT_EQ(p.grad()[1].item<float>(), 0.f);
  p = with_grad(torch::tensor({static_cast<float>(kNan), 2.f}));
  EXPECT_TRUE(std::isnan(clip_grad_norm_(p, 1.0).item<double>()));
  EXPECT_TRUE(p.grad().isnan().all().item<bool>());
}

TEST(ClipGradNorm, CL03_ErrorIfNonfiniteLeavesGradientsAlone) {
  for (const double bad : {kInf, -kInf, kNan}) {
    const auto p = with_grad(torch::tensor({static_cast<float>(bad), 2.f}));
    try {
      clip_grad_norm_(p, 1.0, 2.0, /*error_if_nonfinite=*/true);
      FAIL() << "no error for " << bad;
    } catch (const c10::Error& e) {
      EXPECT_THAT(e.what_without_backtrace(), testing::HasSubstr("non-finite, so it cannot be clipped"));
      EXPECT_THAT(e.what_without_backtrace(), testing::HasSubstr("error_if_nonfinite = false"));
    }
    EXPECT_EQ(p.grad()[1].item<float>(), 2.f);
  }
}

TEST(ClipGradNorm, WrongLimitsAreRefusedBeforeGradientsChange) {
  const auto p = with_grad(torch::tensor({3.f, 4.f}));
  EXPECT_THROW(clip_grad_norm_(p, -1.0), c10::ValueError);
  EXPECT_THROW(clip_grad_norm_(p, kNan), c10::ValueError);
  EXPECT_THROW(clip_grad_norm_(p, 1.0, kNan), c10::ValueError);
  EXPECT_THROW(clip_grad_value_(p, -1.0), c10::ValueError);
  EXPECT_THROW(clip_grad_value_(p, kNan), c10::ValueError);
  EXPECT_TRUE(at::equal(p.grad(), torch::tensor({3.f, 4.f})));
}

TEST(ClipGradNorm, CL07_TheNormAfterClippingIsTheLimit) {
  const auto parameters = random_parameters();
  clip_grad_norm_(parameters, 0.05);
  EXPECT_NEAR(clip_grad_norm_(parameters, kInf).item<double>(), 0.05, 1e-6);
}

TEST(ClipGradNorm, GradientsThatHaveAGraphAreClippedInPlace) {
  const auto x = torch::tensor({3.f}).requires_grad_();
  x.mutable_grad() = x * 2;  // as after backward() with create_graph
  clip_grad_norm_(x, 1.0);
  EXPECT_NEAR(x.grad().item<float>(), 1.0, 1e-6);
}

TEST(ClipGradValue, CL04_ClampsInfAndKeepsNan) {
  const auto p = with_grad(torch::tensor({static_cast<float>(kInf), static_cast<float>(-kInf), 0.5f, -3.f}));
  const auto nan = with_grad(torch::tensor({static_cast<float>(kNan), 7.f}).to(at::kBFloat16));
  clip_grad_value_({p, nan}, 2.0);
  EXPECT_TRUE(at::equal(p.grad(), torch::tensor({2.f, -2.f, 0.5f, -2.f})));
  EXPECT_TRUE(std::isnan(nan.grad()[0].item<float>()));
  EXPECT_EQ(nan.grad()[1].item<float>(), 2.f);
}

TEST(ClipGradValue, CL07_EqualsLibtorch) {
  for (const double limit : {1e-10, 0.5}) {
    const auto ours = random_parameters();
    const auto theirs = clones(ours);
    clip_grad_value_(ours, limit);
    torch::nn::utils::clip_grad_value_(theirs, limit);
    expect_bit_equal(ours, theirs);
  }
}

TEST(ClipGradNorm, GradientsOnCudaAndTheCpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const std::vector<at::Tensor> parameters = {with_grad(torch::tensor({3.f}, at::kCUDA)),
                                              with_grad(torch::tensor({4.f}))};
  const auto total = clip_grad_norm_(parameters, 1.0);
  EXPECT_TRUE(total.is_cuda());
  EXPECT_EQ(total.item<float>(), 5.f);
  EXPECT_NEAR(parameters[0].grad().item<float>(), 0.6, 1e-6);
  EXPECT_NEAR(parameters[1].grad().item<float>(), 0.8, 1e-6);
}

// A flag is the sum over several devices, so that it may be more than 1.
TEST(ClipGradNorm, AnOverflowKeepsTheGradientsAndItsNormIsInf) {
  for (const float flag : {0.f, 1.f, 2.f}) {
    const auto found_inf = torch::full({}, flag);
    const auto p = with_grad(torch::tensor({3.f, 4.f})), plain = with_grad(torch::tensor({3.f, 4.f}));
    const auto norm = clip_grad_norm_unless_(found_inf, p, 2.5);
    EXPECT_EQ(norm.item<double>(), flag == 0 ? 5.0 : kInf) << flag;
    if (flag == 0) clip_grad_norm_(plain, 2.5);
    expect_bit_equal({p}, {plain});
  }
  const auto without = torch::ones({2}).requires_grad_();
  EXPECT_EQ(clip_grad_norm_unless_(torch::zeros({}), without, 1.0).item<float>(), 0.f);
}

TEST(ClipGradValue, AnOverflowKeepsTheGradients) {
  for (const float flag : {0.f, 1.f, 2.f}) {
    const auto p = with_grad(torch::tensor({-3.f, 0.5f, 4.f}));
    clip_grad_value_unless_(torch::full({}, flag), p, 2.0);
    EXPECT_TRUE(
        at::equal(p.grad(), flag == 0 ? torch::tensor({-2.f, 0.5f, 2.f}) : torch::tensor({-3.f, 0.5f, 4.f})));
  }
}

}  // namespace
}  // namespace mantissa::clip_grad_test
