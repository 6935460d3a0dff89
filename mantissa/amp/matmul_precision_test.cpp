#include "mantissa/amp/matmul_precision.h"

#include <stdexcept>
#include <string>

namespace mantissa {
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
  // "never set", not "set to highest": a later generic setting must still reach both backends.
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
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
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
}  // namespace mantissa
