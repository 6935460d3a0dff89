#pragma once

#include <functional>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/kernels/aten/overrides.h"

namespace mantissa::test {

/// A fixture that enables our kernels for each test.
class WithCpuKernels : public testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(1);
    if (!enable_cpu_kernels()) GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0";
  }
  void TearDown() override { disable_cpu_kernels(); }

  /// Returns the result of libtorch's own kernels.
  static at::Tensor stock(const std::function<at::Tensor()>& compute) {
    disable_cpu_kernels();
    const at::Tensor result = compute();
    enable_cpu_kernels();
    return result;
  }
};

}  // namespace mantissa::test
