#include "mantissa/core/weak_map.h"

#include <gtest/gtest.h>
#include <vector>

#include <torch/torch.h>

namespace mantissa::weak_map_test {
namespace {

TEST(WeakMap, FindsTheObjectItWasGiven) {
  WeakMap<at::Tensor, int> map;
  at::Tensor a = torch::zeros({2});
  const at::Tensor b = torch::zeros({2}), alias = a;
  EXPECT_TRUE(map.try_emplace(a, 1).second);
  EXPECT_FALSE(map.try_emplace(alias, 2).second) << "the same tensor";
  a.set_data(torch::ones({3}));
  ASSERT_NE(map.find(a), nullptr) << "whatever it holds";
  EXPECT_EQ(*map.find(a), 1);
  EXPECT_EQ(map.find(b), nullptr) << "equal values are another tensor's";
  EXPECT_EQ(map.find(a.view({3, 1})), nullptr) << "and so is a view";
  map.insert_or_assign(a, 5);
  map.insert_or_assign(b, 6);
  EXPECT_EQ(*map.find(a) + *map.find(b), 11);
  EXPECT_EQ(map.erase(a), 1);
  EXPECT_EQ(map.erase(a), 0);
  EXPECT_FALSE(map.contains(a));
}

TEST(WeakMap, KeepsNothingAliveAndNeverTakesANewObjectForADeadOne) {
  WeakMap<at::Tensor, int> map;
  {
    const at::Tensor dies = torch::zeros({2});
    map.try_emplace(dies, 1);
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> watch(dies.getIntrusivePtr());
    EXPECT_EQ(watch.use_count(), 1);
  }
  int alive = 0;
  map.for_each([&](const auto& /*impl*/, int /*value*/) { ++alive; });
  EXPECT_EQ(alive, 0);
  std::vector<at::Tensor> others;
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(map.contains(others.emplace_back(torch::zeros({2}))));
  EXPECT_EQ(map.size(), 1) << "the entry still holds the address";
  EXPECT_EQ(map.erase_expired(), 1);
}

TEST(WeakMap, DropsDeadEntriesAsItGrows) {
  WeakMap<at::Tensor, int> map;
  const at::Tensor lives = torch::zeros({1});
  map.try_emplace(lives, 7);
  for (int i = 0; i < 1000; ++i) map.try_emplace(torch::zeros({1}), i);
  EXPECT_LT(map.size(), 200);
  EXPECT_EQ(*map.find(lives), 7);
}

TEST(WeakMap, GoesByStorageToo) {
  WeakMap<c10::Storage, int> map;
  const at::Tensor a = torch::zeros({4}), b = torch::zeros({4});
  map.try_emplace(a.storage(), 1);
  EXPECT_TRUE(map.contains(a.view({2, 2}).storage())) << "views share it";
  EXPECT_EQ(map.find(b.storage()), nullptr);
  EXPECT_EQ(*map.find(a.storage().unsafeGetStorageImpl()), 1);
}

}  // namespace
}  // namespace mantissa::weak_map_test
