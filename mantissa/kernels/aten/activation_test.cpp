#include <gtest/gtest.h>
#include <sstream>

#include <torch/torch.h>

#include "mantissa/kernels/aten/overrides.h"

namespace mantissa::activation_test {
namespace {

class Gelu : public testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(1);
    if (!enable_cpu_kernels()) GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0";
  }
  void TearDown() override { disable_cpu_kernels(); }
};

TEST_F(Gelu, TakesLibtorchsPlaceInEveryLayout) {
  for (const char* const approximate : {"none", "tanh"})
    for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
      const at::Tensor base = at::randn({6, 5, 4, 40000 / 120}) * 3;
      for (const at::Tensor& like :
           {base, base.transpose(0, 2), base.contiguous(at::MemoryFormat::ChannelsLast), base.slice(1, 1, 4),
            base.select(0, 1).expand({3, 5, 4, -1}), base.slice(0, 0, 0)}) {
        std::ostringstream what;
        what << approximate << " " << dtype << " " << like.sizes() << " " << like.strides();
        SCOPED_TRACE(what.str());
        const at::Tensor x = like.to(dtype).requires_grad_();
        const at::Tensor y = at::gelu(x, approximate), g = at::randn(like.sizes()).to(dtype);
        y.backward(g);
        const at::Tensor wide = x.detach().to(at::kDouble).requires_grad_();
        const at::Tensor want = at::gelu(wide, approximate);
        want.backward(g.to(at::kDouble));
        const double rtol = dtype == at::kBFloat16 ? 0x1p-8 : dtype == at::kHalf ? 0x1p-11 : 1e-5;
        EXPECT_EQ(y.scalar_type(), dtype);
        EXPECT_TRUE(at::allclose(y.to(at::kDouble), want, rtol, 1e-6));
        // The tolerance is wide because libtorch's float32 tanh form suffers from cancellation.
        EXPECT_TRUE(at::allclose(x.grad().to(at::kDouble), wide.grad(), rtol, 1e-5));
        disable_cpu_kernels();
        EXPECT_EQ(at::gelu(x, approximate).strides(), y.strides());
        enable_cpu_kernels();
        at::Tensor in_place = x.detach().clone();
        if (in_place.numel() > 0) {
          EXPECT_EQ(at::gelu_(in_place, approximate).data_ptr(), in_place.data_ptr());
          EXPECT_TRUE(at::allclose(in_place.to(at::kDouble), want, rtol, 1e-6));
        }
      }
    }
  EXPECT_THROW(at::gelu(at::ones({2}, at::kHalf), "erf"), c10::Error);
  EXPECT_THROW(at::gelu(at::ones({2}, at::kInt)), c10::Error);
}

}  // namespace
}  // namespace mantissa::activation_test
