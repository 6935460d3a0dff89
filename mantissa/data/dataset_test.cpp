#include "mantissa/data/dataset.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

namespace mantissa::dataset_test {
namespace {

at::Tensor row(std::vector<int64_t> values) { return at::tensor(values, at::kLong); }
std::shared_ptr<const Dataset> numbers(int64_t n) {
  return std::make_shared<TensorDataset>(at::arange(n, at::kLong), at::arange(n, at::kLong) * 10);
}
at::Tensor all(const Dataset& dataset) {
  return dataset.get_batch(at::arange(dataset.size(), at::kLong)).data;
}

TEST(TensorDataset, RefusesWrongIndices) {
  const auto dataset = numbers(5);
  EXPECT_THROW(dataset->get_batch(row({0, 5})), c10::ValueError);
  EXPECT_THROW(dataset->get_batch(row({-1})), c10::ValueError);
  EXPECT_THROW(dataset->get_batch(at::zeros({1, 1}, at::kLong)), c10::ValueError);
  EXPECT_THROW(dataset->get_batch(at::zeros({1}, at::kInt)), c10::ValueError);
  EXPECT_THROW(dataset->get_batch(at::Tensor()), c10::ValueError);
  // Every second element of a longer row: the check must follow the stride.
  EXPECT_THROW(dataset->get_batch(row({0, 0, 9, 0}).slice(0, 0, 4, 2)), c10::ValueError);
  EXPECT_EQ(dataset->get_batch(row({0, 9, 4, 9}).slice(0, 0, 4, 2)).data.sum().item<int64_t>(), 4);
}

TEST(TensorDataset, PicksInTheOrderOfTheIndices) {
  const Batch batch = numbers(5)->get_batch(row({4, 0, 4}));
  EXPECT_TRUE(at::equal(batch.data, row({4, 0, 4})));
  EXPECT_TRUE(at::equal(batch.target, row({40, 0, 40})));
  EXPECT_EQ(numbers(5)->get_batch(at::empty({0}, at::kLong)).size(), 0);
  EXPECT_FALSE(TensorDataset(at::ones({2, 3})).get_batch(row({1})).target.defined());
}

TEST(TensorDataset, RefusesWhatDoesNotCountTheSame) {
  EXPECT_THROW(TensorDataset(at::ones({2}), at::ones({3})), c10::ValueError);
  EXPECT_THROW(TensorDataset(at::ones({2}), at::ones({})), c10::ValueError);
  EXPECT_THROW(TensorDataset(at::ones({})), c10::ValueError);
  EXPECT_THROW(TensorDataset(at::Tensor()), c10::ValueError);
}

TEST(Subset, MapsIndicesAndChecksThem) {
  const Subset subset(numbers(10), row({7, 3, 7}));
  EXPECT_EQ(subset.size(), 3);
  EXPECT_TRUE(at::equal(subset.get_batch(row({2, 1})).target, row({70, 30})));
  EXPECT_THROW(subset.get_batch(row({3})), c10::ValueError);
  EXPECT_THROW(Subset(numbers(10), row({10})), c10::ValueError);
  EXPECT_THROW(Subset(nullptr, row({0})), c10::ValueError);
}

TEST(RandomSplit, RefusesEmptyParts) {
  for (const double fraction : {0.0, 1.0, -0.1, 1.5, 0.01, 0.99, std::nan("")}) {
    EXPECT_THROW(random_split(numbers(10), fraction, 0), c10::ValueError) << fraction;
  }
  EXPECT_THROW(random_split(numbers(1), 0.5, 0), c10::ValueError);
  EXPECT_THROW(random_split(nullptr, 0.5, 0), c10::ValueError);
}

// torch.randperm(10, generator=torch.Generator().manual_seed(0)) of PyTorch 2.11 for Python.
TEST(RandomSplit, DrawsAsPythonDoes) {
  const auto [train, held_out] = random_split(numbers(10), 0.29, 0);
  EXPECT_TRUE(at::equal(all(*train), row({4, 1, 7, 5, 3, 9, 0}))) << all(*train);
  EXPECT_TRUE(at::equal(all(*held_out), row({8, 6, 2})));
}

TEST(RandomSplit, LeavesTheGlobalGeneratorAlone) {
  torch::manual_seed(1);
  const at::Tensor want = at::rand({3});
  torch::manual_seed(1);
  random_split(numbers(10), 0.5, 3);
  EXPECT_TRUE(at::equal(at::rand({3}), want));
}

}  // namespace
}  // namespace mantissa::dataset_test
