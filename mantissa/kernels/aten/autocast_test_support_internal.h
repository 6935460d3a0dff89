#pragma once

#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/overrides.h"

namespace mantissa::test {

/// libtorch's own autocast region. These tests cannot use Mantissa's, which is built on top of the kernels.
class Region {
 public:
  explicit Region(at::ScalarType dtype) : before_(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
  }
  ~Region() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, before_);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  at::ScalarType before_;
};

/// Enables the kernels for each test. The parameter is the dtype of the autocast region.
class MixedProductsTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    at::manual_seed(1);
    if (!enable_cpu_kernels()) GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0";
  }
  void TearDown() override { disable_cpu_kernels(); }

  static bool is_ours(int64_t m, int64_t n, int64_t k) {
    kernels::Gemm g;
    g.m = m;
    g.n = n;
    g.k = k;
    g.a.element = element();
    return kernel_for(family_of(g), element()).tier.has_value();
  }

  static kernels::Element element() {
    return GetParam() == at::kHalf ? kernels::Element::kFloat16 : kernels::Element::kBFloat16;
  }
};

}  // namespace mantissa::test
