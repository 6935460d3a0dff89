#include "mantissa/amp/matmul_precision.h"

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "mantissa/amp/test_support_internal.h"
#include "mantissa/core/cpu_features.h"
#include "mantissa/core/device.h"

namespace mantissa::matmul_precision_test {
namespace {

using at::Float32Backend;
using at::Float32Op;
using at::Float32Precision;

Float32Precision setting(Float32Backend backend, Float32Op op = Float32Op::MATMUL) {
  return at::globalContext().float32Precision(backend, op);
}

TEST(MatmulPrecision, MP01_StartsAtHighestWithNothingSet) {
  EXPECT_EQ(get_float32_matmul_precision(), "highest");
  EXPECT_EQ(setting(Float32Backend::CUDA), Float32Precision::NONE);
  EXPECT_EQ(setting(Float32Backend::MKLDNN), Float32Precision::NONE);
}

// libtorch reads the variable once, when it starts, so only a new process sees it.
TEST(MatmulPrecisionDeathTest, MP01_TheEnvironmentStartsAtHigh) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1", 1);
  EXPECT_EXIT(std::_Exit(get_float32_matmul_precision() == "high" ? 7 : 8), testing::ExitedWithCode(7), "");
  unsetenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE");
}

TEST(MatmulPrecision, MP02_UnknownNamesAreRefusedAndChangeNothing) {
  const Float32MatmulPrecisionGuard restore("high");
  for (const char* name : {"HIGH", "", "tf32", "mediun"}) {
    EXPECT_THROW(set_float32_matmul_precision(name), c10::ValueError) << name;
    EXPECT_THROW(Float32MatmulPrecisionGuard{name}, c10::ValueError) << name;
    EXPECT_EQ(get_float32_matmul_precision(), "high") << name;
  }
  try {
    set_float32_matmul_precision("mediun");
    FAIL() << "no error";
  } catch (const c10::ValueError& e) {
    EXPECT_THAT(e.what_without_backtrace(),
                testing::HasSubstr("'mediun' is not one of highest, high, medium"));
    EXPECT_THAT(e.what_without_backtrace(), testing::HasSubstr("did you mean 'medium'?"));
  }
}

TEST(MatmulPrecision, EachNameSetsWhatTorchSets) {
  const Float32MatmulPrecisionGuard restore("highest");
  struct Row {
    const char* name;
    Float32Precision cuda, mkldnn;
    bool allow_tf32;
  };
  for (const auto& row : {Row{"highest", Float32Precision::IEEE, Float32Precision::IEEE, false},
                          Row{"high", Float32Precision::TF32, Float32Precision::TF32, true},
                          Row{"medium", Float32Precision::TF32, Float32Precision::BF16, true}}) {
    set_float32_matmul_precision(row.name);
    EXPECT_EQ(get_float32_matmul_precision(), row.name);
    EXPECT_EQ(setting(Float32Backend::CUDA), row.cuda) << row.name;
    EXPECT_EQ(setting(Float32Backend::MKLDNN), row.mkldnn) << row.name;
    EXPECT_EQ(at::globalContext().allowTF32CuBLAS(), row.allow_tf32) << row.name;
  }
}

TEST(MatmulPrecision, MP03_ConvolutionsKeepTheirSetting) {
  const auto before = setting(Float32Backend::CUDA, Float32Op::CONV);
  EXPECT_EQ(before, Float32Precision::TF32);
  for (const char* name : {"highest", "high", "medium"}) {
    const Float32MatmulPrecisionGuard guard(name);
    EXPECT_EQ(setting(Float32Backend::CUDA, Float32Op::CONV), before) << name;
  }
}

/// Restores libtorch's per-backend settings to those of a new process.
struct Settings {
  at::Context& context = at::globalContext();
  void set(Float32Backend backend, Float32Op op, Float32Precision precision) {
    context.setFloat32Precision(backend, op, precision);
  }
  Settings() = default;
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;
  ~Settings() {
    set(Float32Backend::GENERIC, Float32Op::ALL, Float32Precision::NONE);
    for (const auto op : {Float32Op::ALL, Float32Op::MATMUL, Float32Op::CONV, Float32Op::RNN}) {
      set(Float32Backend::CUDA, op, Float32Precision::NONE);
      set(Float32Backend::MKLDNN, op, Float32Precision::NONE);
    }
    context.setAllowTF32CuDNN(true);
  }
};

TEST(MatmulPrecision, MP04_OperationsInheritFromBackendThenFromAll) {
  Settings settings;
  settings.set(Float32Backend::GENERIC, Float32Op::ALL, Float32Precision::TF32);
  EXPECT_EQ(setting(Float32Backend::MKLDNN, Float32Op::CONV), Float32Precision::TF32);
  settings.set(Float32Backend::MKLDNN, Float32Op::ALL, Float32Precision::BF16);
  EXPECT_EQ(setting(Float32Backend::MKLDNN, Float32Op::CONV), Float32Precision::BF16);
  settings.set(Float32Backend::MKLDNN, Float32Op::CONV, Float32Precision::IEEE);
  EXPECT_EQ(setting(Float32Backend::MKLDNN, Float32Op::CONV), Float32Precision::IEEE);
  settings.set(Float32Backend::MKLDNN, Float32Op::CONV, Float32Precision::NONE);
  EXPECT_EQ(setting(Float32Backend::MKLDNN, Float32Op::CONV), Float32Precision::BF16);
}

TEST(MatmulPrecision, MP05_CudaKnowsNoBf16) {
  Settings settings;
  for (const auto op : {Float32Op::ALL, Float32Op::MATMUL, Float32Op::CONV, Float32Op::RNN}) {
    const auto before = setting(Float32Backend::CUDA, op);
    EXPECT_THROW(settings.set(Float32Backend::CUDA, op, Float32Precision::BF16), c10::Error);
    EXPECT_EQ(setting(Float32Backend::CUDA, op), before);
    settings.set(Float32Backend::MKLDNN, op, Float32Precision::BF16);
    EXPECT_EQ(setting(Float32Backend::MKLDNN, op), Float32Precision::BF16);
  }
  EXPECT_THROW(at::str2precision("fp8"), c10::Error);
}

TEST(MatmulPrecision, MP06_OneSettingForAllReachesWhatInherits) {
  Settings settings;
  settings.set(Float32Backend::GENERIC, Float32Op::ALL, Float32Precision::TF32);
  EXPECT_EQ(setting(Float32Backend::CUDA), Float32Precision::TF32);
  for (const auto op : {Float32Op::MATMUL, Float32Op::CONV, Float32Op::RNN})
    EXPECT_EQ(setting(Float32Backend::MKLDNN, op), Float32Precision::TF32);
  settings.set(Float32Backend::GENERIC, Float32Op::ALL, Float32Precision::IEEE);
  EXPECT_EQ(setting(Float32Backend::CUDA), Float32Precision::IEEE);
  EXPECT_TRUE(tf32_convolutions());  // explicit from the start
}

TEST(MatmulPrecision, MP08_HighIsInertWithoutHardwareForIt) {
  torch::manual_seed(0);
  const auto a = torch::randn({64, 64}), b = torch::randn({64, 64});
  const auto image = torch::randn({1, 2, 8, 8}), kernel = torch::randn({3, 2, 3, 3});
  const auto product = a.mm(b), convolved = at::conv2d(image, kernel);
  // Where the CPU has fp16 tiles, oneDNN runs float32 products in TF32 for "high". Where it has AVX-512,
  // oneDNN runs them for "medium"; it may round differently from MKL even if it multiplies in float32.
  std::vector<std::string> inert;
  if (!hardware_cpu_features().has(CpuFeature::kAmxFp16)) inert.push_back("high");
  if (!hardware_cpu_features().includes(features_of(CpuTier::kAvx512))) inert.push_back("medium");
  if (inert.empty()) GTEST_SKIP() << "this CPU has AMX-FP16";
  for (const std::string& name : inert) {
    const Float32MatmulPrecisionGuard guard(name);
    const Tf32ConvolutionsGuard convolutions(true);
    EXPECT_TRUE(at::equal(a.mm(b), product)) << name;
    EXPECT_TRUE(at::equal(at::conv2d(image, kernel), convolved)) << name;
  }
}

TEST(Tf32Convolutions, MP03_OnFromTheStartAndApartFromProducts) {
  EXPECT_TRUE(tf32_convolutions());
  set_tf32_convolutions(false);
  EXPECT_FALSE(tf32_convolutions());
  EXPECT_NE(setting(Float32Backend::CUDA, Float32Op::RNN), Float32Precision::TF32);
  EXPECT_EQ(get_float32_matmul_precision(), "highest");
  set_tf32_convolutions(true);
  EXPECT_TRUE(tf32_convolutions());
  EXPECT_EQ(setting(Float32Backend::CUDA, Float32Op::RNN), Float32Precision::TF32);
}

TEST(Tf32ConvolutionsGuard, RestoresWhenTheBodyThrowsAndWhenNested) {
  Settings settings;
  try {
    const Tf32ConvolutionsGuard outer(false);
    {
      const Tf32ConvolutionsGuard inner(true);
      EXPECT_TRUE(tf32_convolutions());
    }
    EXPECT_FALSE(tf32_convolutions());
    throw std::runtime_error("body");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(tf32_convolutions());
  set_tf32_convolutions(false);
  { const Tf32ConvolutionsGuard guard(true); }
  EXPECT_FALSE(tf32_convolutions());
  EXPECT_FALSE(at::globalContext().allowTF32CuDNN());
}

// libtorch writes "off" as "inherits".
TEST(Tf32ConvolutionsGuard, WhatWasTurnedOffExplicitlyStaysSo) {
  Settings settings;
  set_tf32_convolutions(false);
  for (const auto op : {Float32Op::CONV, Float32Op::RNN})
    settings.set(Float32Backend::CUDA, op, Float32Precision::IEEE);
  {
    const Tf32ConvolutionsGuard guard(true);
    EXPECT_TRUE(tf32_convolutions());
  }
  settings.set(Float32Backend::CUDA, Float32Op::ALL, Float32Precision::TF32);
  for (const auto op : {Float32Op::CONV, Float32Op::RNN})
    EXPECT_EQ(setting(Float32Backend::CUDA, op), Float32Precision::IEEE);
}

TEST(Tf32ConvolutionsGuard, MP07_SettingsThatDifferAreRefusedBeforeAnythingChanges) {
  Settings settings;
  settings.set(Float32Backend::CUDA, Float32Op::RNN, Float32Precision::IEEE);
  EXPECT_THROW(Tf32ConvolutionsGuard{false}, c10::Error);
  EXPECT_TRUE(tf32_convolutions());
  EXPECT_EQ(setting(Float32Backend::CUDA, Float32Op::RNN), Float32Precision::IEEE);
}

TEST(MatmulPrecision, MP07_OldAndNewInterfaceAgreeWhereBothCanSayIt) {
  Settings settings;
  at::globalContext().setAllowTF32CuBLAS(true);
  EXPECT_EQ(get_float32_matmul_precision(), "high");
  at::globalContext().setAllowTF32CuBLAS(false);
  EXPECT_EQ(get_float32_matmul_precision(), "highest");
  EXPECT_EQ(setting(Float32Backend::CUDA), Float32Precision::IEEE);
}

TEST(MatmulPrecisionGuard, RestoresWhenTheBodyThrowsAndWhenNested) {
  try {
    const Float32MatmulPrecisionGuard outer("high");
    {
      const Float32MatmulPrecisionGuard inner("medium");
      EXPECT_EQ(get_float32_matmul_precision(), "medium");
    }
    EXPECT_EQ(get_float32_matmul_precision(), "high");
    throw std::runtime_error("body");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(get_float32_matmul_precision(), "highest");
  // The state must be "never set", not "set to highest": a later generic setting must still reach both
  // backends.
  EXPECT_EQ(setting(Float32Backend::CUDA), Float32Precision::NONE);
  EXPECT_EQ(setting(Float32Backend::MKLDNN), Float32Precision::NONE);
}

TEST(MatmulPrecisionGuard, KeepsAnExplicitHighest) {
  set_float32_matmul_precision("highest");
  { const Float32MatmulPrecisionGuard guard("high"); }
  EXPECT_EQ(setting(Float32Backend::CUDA), Float32Precision::IEEE);
  EXPECT_EQ(setting(Float32Backend::MKLDNN), Float32Precision::IEEE);
  at::globalContext().setFloat32Precision(Float32Backend::CUDA, Float32Op::MATMUL, Float32Precision::NONE);
  at::globalContext().setFloat32Precision(Float32Backend::MKLDNN, Float32Op::MATMUL, Float32Precision::NONE);
}

TEST(MatmulPrecisionGuard, MP07_MixedInterfacesAreRefusedBeforeAnythingChanges) {
  auto& context = at::globalContext();
  context.setFloat32Precision(Float32Backend::CUDA, Float32Op::MATMUL, Float32Precision::TF32);
  EXPECT_THROW(get_float32_matmul_precision(), c10::Error);
  EXPECT_THROW(Float32MatmulPrecisionGuard{"medium"}, c10::Error);
  EXPECT_EQ(setting(Float32Backend::CUDA), Float32Precision::TF32);
  context.setFloat32Precision(Float32Backend::CUDA, Float32Op::MATMUL, Float32Precision::NONE);
  EXPECT_EQ(get_float32_matmul_precision(), "highest");
}

TEST(MatmulPrecision, CudaProductsInTf32AreCoarserAndStayFloat32) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  torch::manual_seed(0);
  const auto a = torch::randn({256, 256}, at::kCUDA), b = torch::randn({256, 256}, at::kCUDA);
  const auto exact = a.to(at::kDouble).mm(b.to(at::kDouble));
  const auto error = [&](const char* name) {
    const Float32MatmulPrecisionGuard guard(name);
    const auto product = a.mm(b);
    EXPECT_EQ(product.scalar_type(), at::kFloat);
    return (product - exact).abs().max().item<double>();
  };
  EXPECT_LE(error("highest"), 1e-4);
  EXPECT_LE(error("high"), 0.1);
}

}  // namespace
}  // namespace mantissa::matmul_precision_test
