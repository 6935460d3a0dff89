#include "mantissa/data/batch.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

namespace mantissa::batch_test {
namespace {

TEST(Batch, SizeWithoutData) {
  EXPECT_EQ(Batch{}.size(), 0);
  EXPECT_EQ((Batch{at::ones({}), {}, {}}).size(), 0);
  EXPECT_EQ((Batch{at::ones({0, 3}), {}, {}}).size(), 0);
  EXPECT_EQ((Batch{at::ones({4, 3}), {}, {}}).size(), 4);
}

TEST(Batch, IsEmptyWithoutSamples) {
  EXPECT_FALSE(Batch{}.is_empty());
  EXPECT_FALSE((Batch{at::ones({}), {}, {}}).is_empty());
  EXPECT_FALSE((Batch{at::ones({4, 3}), {}, {}}).is_empty());
  EXPECT_TRUE((Batch{at::ones({0, 3}), {}, {}}).is_empty());
  EXPECT_TRUE((Batch{{}, at::ones({0}), {}}).is_empty());
  EXPECT_TRUE((Batch{{}, {}, {{"mask", at::ones({0, 3})}}}).is_empty());
}

TEST(Batch, MapsEveryTensor) {
  const Batch batch{at::ones({2}), at::Tensor(), {{"mask", at::ones({2, 3})}}};
  const Batch doubled = map_tensors(batch, [](const at::Tensor& t) { return t * 2; });
  EXPECT_TRUE(at::equal(doubled.data, at::full({2}, 2.0)));
  EXPECT_FALSE(doubled.target.defined());
  EXPECT_TRUE(at::equal(doubled.fields.at("mask"), at::full({2, 3}, 2.0)));
  EXPECT_TRUE(at::equal(batch.data, at::ones({2})));
  EXPECT_TRUE(at::equal(batch.to(at::kCPU).fields.at("mask"), batch.fields.at("mask")));
  EXPECT_TRUE(batch.to(at::kMeta).fields.at("mask").is_meta());
}

}  // namespace
}  // namespace mantissa::batch_test
