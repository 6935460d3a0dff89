#include "mantissa/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include <torch/torch.h>

namespace mantissa::loader_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<const Dataset> numbers(int64_t n) {
  return std::make_shared<TensorDataset>(at::arange(n, at::kLong));
}

std::vector<std::vector<int64_t>> epoch(Loader& loader) {
  std::vector<std::vector<int64_t>> batches;
  while (const auto batch = loader.next()) {
    const auto* values = batch->data.const_data_ptr<int64_t>();
    batches.emplace_back(values, values + batch->size());
  }
  EXPECT_FALSE(loader.next().has_value());
  EXPECT_EQ(int64_t(batches.size()), loader.size());
  return batches;
}

std::string error_of(std::shared_ptr<const Dataset> dataset, const DataLoaderOptions& options) {
  try {
    DataLoader(std::move(dataset), options);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(DataLoader, RefusesWhatMakesNoBatches) {
  EXPECT_THAT(error_of(numbers(5), {.batch_size = 0}),
              HasSubstr("batch_size 0 makes no batches; give 1 or more"));
  EXPECT_THAT(error_of(numbers(5), {.batch_size = -3}), HasSubstr("batch_size -3"));
  EXPECT_THAT(error_of(numbers(0), {}), HasSubstr("no samples"));
  EXPECT_THAT(error_of(nullptr, {}), HasSubstr("no dataset"));
  EXPECT_THAT(error_of(numbers(5), {.num_samples = -1}), HasSubstr("num_samples -1 is negative"));
  EXPECT_THAT(error_of(numbers(5), {.num_samples = 6}), HasSubstr("num_samples 6 exceeds the dataset's 5"));
  EXPECT_THAT(error_of(numbers(5), {.batch_size = 6, .drop_last = true}),
              HasSubstr("drop_last leaves no batch"));
}

TEST(DataLoader, LastBatch) {
  DataLoader all(numbers(5), {.batch_size = 2});
  EXPECT_THAT(epoch(all), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
  DataLoader whole(numbers(5), {.batch_size = 2, .drop_last = true});
  EXPECT_THAT(epoch(whole), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  DataLoader fits(numbers(4), {.batch_size = 2, .drop_last = true});
  EXPECT_THAT(epoch(fits), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  DataLoader large(numbers(3), {.batch_size = std::numeric_limits<int64_t>::max()});
  EXPECT_THAT(epoch(large), ElementsAre(ElementsAre(0, 1, 2)));
}

// torch.randperm(7, generator=torch.Generator().manual_seed(5)) of PyTorch 2.11 for Python.
TEST(DataLoader, ShufflesAsPythonDoes) {
  DataLoader loader(numbers(7), {.batch_size = 4, .shuffle = true, .seed = 3});
  loader.set_epoch(2);
  EXPECT_THAT(epoch(loader), ElementsAre(ElementsAre(1, 0, 4, 2), ElementsAre(6, 5, 3)));
  DataLoader some(numbers(7), {.batch_size = 2, .shuffle = true, .seed = 5, .num_samples = 3});
  EXPECT_THAT(epoch(some), ElementsAre(ElementsAre(1, 0), ElementsAre(4)));
}

// torch.randint(7, (12,), generator=torch.Generator().manual_seed(3))
TEST(DataLoader, ReplacementMayExceedTheDataset) {
  DataLoader loader(numbers(7), {.batch_size = 12, .seed = 3, .num_samples = 12, .replacement = true});
  EXPECT_THAT(epoch(loader), ElementsAre(ElementsAre(5, 3, 3, 4, 0, 6, 2, 4, 5, 0, 6, 6)));
}

TEST(DataLoader, EpochsDifferAndRepeat) {
  DataLoader loader(numbers(50), {.batch_size = 8, .shuffle = true, .seed = 9});
  const auto first = epoch(loader);
  loader.set_epoch(1);
  const auto second = epoch(loader);
  EXPECT_NE(first, second);
  loader.set_epoch(0);
  loader.next();  // left in the middle
  loader.set_epoch(0);
  EXPECT_EQ(epoch(loader), first);
}

TEST(DataLoader, LeavesTheGlobalGeneratorAlone) {
  torch::manual_seed(1);
  const at::Tensor want = at::rand({3});
  torch::manual_seed(1);
  for (const bool replacement : {false, true}) {
    DataLoader loader(numbers(50), {.shuffle = true, .replacement = replacement});
    epoch(loader);
  }
  EXPECT_TRUE(at::equal(at::rand({3}), want));
}

TEST(OrderedLoader, ReadsTheGivenOrderInEveryEpoch) {
  OrderedLoader loader(numbers(5), at::tensor({4, 0, 0, 1, 2, 3}, at::kLong).view({3, 2}));
  for (int64_t e = 0; e < 2; ++e) {
    loader.set_epoch(e);
    EXPECT_THAT(epoch(loader), ElementsAre(ElementsAre(4, 0), ElementsAre(0, 1), ElementsAre(2, 3)));
  }
}

TEST(OrderedLoader, RefusesWrongOrders) {
  EXPECT_THROW(OrderedLoader(numbers(5), at::full({1, 1}, 5, at::kLong)), c10::ValueError);
  EXPECT_THROW(OrderedLoader(numbers(5), at::zeros({2}, at::kLong)), c10::ValueError);
  EXPECT_THROW(OrderedLoader(numbers(5), at::zeros({2, 0}, at::kLong)), c10::ValueError);
  EXPECT_THROW(OrderedLoader(numbers(5), at::zeros({2, 2}, at::kInt)), c10::ValueError);
  EXPECT_THROW(OrderedLoader(nullptr, at::zeros({2, 2}, at::kLong)), c10::ValueError);
}

}  // namespace
}  // namespace mantissa::loader_test
