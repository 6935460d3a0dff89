#include "mantissa/data/digits.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

namespace mantissa::digits_test {
namespace {

// Figures from scikit-learn's documentation of load_digits(): 1,797 samples, about 180 a class, values 0
// to 16.
TEST(Digits, AreScikitLearns) {
  const auto digits = load_digits();
  EXPECT_EQ(digits->size(), 1797);
  EXPECT_EQ(digits->data().sizes(), (std::vector<int64_t>{1797, 1, 8, 8}));
  EXPECT_EQ(digits->data().scalar_type(), at::kFloat);
  EXPECT_EQ(digits->data().min().item<float>(), 0.f);
  EXPECT_EQ(digits->data().max().item<float>(), 1.f);
  const std::vector<float> first{0, 0, 5, 13, 9, 1, 0, 0};
  EXPECT_TRUE(at::equal(digits->data()[0][0][0] * 16, at::tensor(first)));
  EXPECT_EQ(digits->target().scalar_type(), at::kLong);
  const std::vector<int64_t> counts{178, 182, 177, 183, 181, 182, 181, 179, 174, 180};
  EXPECT_TRUE(at::equal(at::bincount(digits->target()), at::tensor(counts, at::kLong)));
}

}  // namespace
}  // namespace mantissa::digits_test
