#include "mantissa/kernels/cpu/fingerprint.h"

#include <gtest/gtest.h>
#include <vector>

#include <torch/torch.h>

namespace mantissa::kernels::cpu::fingerprint_test {
namespace {

uint64_t fingerprint(const at::Tensor& x) {
  return cpu::fingerprint({x.const_data_ptr<float>(), x.size(0), x.size(1), x.stride(0), x.stride(1)});
}

std::vector<at::Tensor> layouts() {
  at::manual_seed(1);
  return {at::randn({1, 1}),
          at::randn({3, 5}),
          at::randn({40, 33}).t(),
          at::randn({300, 200}),
          at::randn({20, 90}).slice(1, 1, 70),
          at::randn({64, 90}).slice(1, 0, 90, 3),
          at::randn({2, 40000}),
          at::randn({1, 50}).expand({30, 50}),
          at::randn({30, 1}).expand({30, 50})};
}

TEST(Fingerprint, IsThatOfTheContents) {
  const int threads = at::get_num_threads();
  for (const at::Tensor& matrix : layouts()) {
    const uint64_t before = fingerprint(matrix);
    EXPECT_EQ(fingerprint(matrix), before);
    const at::Tensor elsewhere = matrix.clone(at::MemoryFormat::Preserve);
    if (elsewhere.strides() == matrix.strides()) {
      EXPECT_EQ(fingerprint(elsewhere), before);
    }
    for (const int count : {1, 3}) {
      at::set_num_threads(count);
      EXPECT_EQ(fingerprint(matrix), before) << count << " threads";
    }
    at::set_num_threads(threads);
  }
}

TEST(Fingerprint, SeesEveryElementAndEveryBit) {
  for (const at::Tensor& matrix : layouts()) {
    if (matrix.stride(0) == 0 || matrix.stride(1) == 0) continue;

    const uint64_t before = fingerprint(matrix);
    for (int64_t i = 0; i<matrix.numel(); i += matrix.numel()> 2000 ? 997 : 1) {
      float& element = *(matrix.data_ptr<float>() + i / matrix.size(1) * matrix.stride(0) +
                         i % matrix.size(1) * matrix.stride(1));
      const float was = element;
      element = std::nextafter(was, 10.0F);
      EXPECT_NE(fingerprint(matrix), before) << i;
      element = -was;
      EXPECT_NE(fingerprint(matrix), before) << i;
      element = was;
    }
    EXPECT_EQ(fingerprint(matrix), before);
  }
}

/// Changes that a program makes to a whole weight, or to rows of it. A sum of the values' bits would miss
/// some of them.
TEST(Fingerprint, SeesChangesOfAllValuesAlike) {
  for (const int64_t rows : {1, 3, 64, 128, 256})
    for (const int64_t columns : {16, 64, 512})
      for (const bool is_constant : {false, true}) {
        const at::Tensor matrix = is_constant ? at::ones({rows, columns}) : at::randn({rows, columns});
        const uint64_t before = fingerprint(matrix);
        for (const double factor : {-1.0, 2.0, 4.0, 16.0, 65536.0, 0.5, 0.25, -0.25, 0.9, 0.0})
          EXPECT_NE(fingerprint(matrix * factor), before) << rows << " x " << columns << " by " << factor;
        for (int64_t some = 1; some <= rows; some *= 2) {
          at::Tensor turned = matrix.clone();
          turned.narrow(0, 0, some).neg_();
          EXPECT_NE(fingerprint(turned), before) << some << " of " << rows << " x " << columns;
          EXPECT_NE(fingerprint(turned.t()), before);
        }
        EXPECT_NE(fingerprint(matrix + 1), before);
      }
}

TEST(Fingerprint, SeesAnotherOrder) {
  const at::Tensor matrix = at::randn({300, 200});
  const uint64_t before = fingerprint(matrix);
  EXPECT_NE(fingerprint(matrix.flip(0)), before);
  EXPECT_NE(fingerprint(matrix.roll(16, 1)), before) << "in the same lanes";
  EXPECT_NE(fingerprint(matrix.roll(1, 0)), before);
  const at::Tensor swapped = matrix.clone();
  swapped[3][7] = matrix[3][8];
  swapped[3][8] = matrix[3][7];
  EXPECT_NE(fingerprint(swapped), before);
}

TEST(Fingerprint, SeesWhatLeavesTheSumAsItWas) {
  const at::Tensor matrix = at::zeros({64, 64});
  const uint64_t before = fingerprint(matrix);
  for (int64_t i = 1; i < 64 * 64; ++i) {
    matrix.view(-1)[0] = 1;
    matrix.view(-1)[i] = -1;
    EXPECT_NE(fingerprint(matrix), before) << i;
    matrix.zero_();
  }
}

}  // namespace
}  // namespace mantissa::kernels::cpu::fingerprint_test
