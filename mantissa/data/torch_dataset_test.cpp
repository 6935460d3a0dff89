#include "mantissa/data/torch_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::torch_dataset_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A dataset of a user's, as libtorch's documentation has it.
class Squares final : public torch::data::datasets::Dataset<Squares> {
 public:
  explicit Squares(size_t count) : count_(count) {}
  torch::data::Example<> get(size_t index) override {
    ++calls_;
    const auto number = static_cast<double>(index);
    return {torch::tensor({number, number * number}), torch::tensor(static_cast<int64_t>(index % 3))};
  }
  std::optional<size_t> size() const override { return count_; }

 private:
  size_t count_;
  int64_t calls_ = 0;  ///< reading changes the object
};

std::vector<int64_t> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).flatten();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

TEST(TorchDataset, ReadsWhatLibtorchsLoaderReads) {
  const auto normalized = [] { return Squares(10).map(torch::data::transforms::Normalize<>(1.0, 2.0)); };
  auto theirs = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      normalized().map(torch::data::transforms::Stack<>()), 4);
  DataLoader in_examples(torch_dataset(normalized()), {.batch_size = 4}),
      in_batches(torch_dataset(normalized().map(torch::data::transforms::Stack<>())), {.batch_size = 4});
  for (const auto& want : *theirs) {
    for (DataLoader* const loader : {&in_examples, &in_batches}) {
      const Batch got = *loader->next();
      EXPECT_TRUE(got.data.equal(want.data));
      EXPECT_TRUE(got.target.equal(want.target));
    }
  }
  EXPECT_FALSE(in_examples.next() || in_batches.next());
}

TEST(TorchDataset, TargetsMayBeMissing) {
  const auto dataset = torch_dataset(torch::data::datasets::TensorDataset(torch::arange(12).view({6, 2})));
  EXPECT_EQ(dataset->size(), 6);
  const Batch batch = dataset->get_batch(torch::tensor({4, 0}));
  EXPECT_THAT(values(batch.data), ElementsAre(8, 9, 0, 1));
  EXPECT_FALSE(batch.target.defined());
}

TEST(TorchDataset, SeveralWorkersReadOneAtATime) {
  const auto dataset = torch_dataset(Squares(200));
  DataLoader one(dataset, {.batch_size = 7, .shuffle = true, .seed = 3}),
      several(dataset, {.batch_size = 7, .shuffle = true, .seed = 3, .num_workers = 3});
  for (std::optional<Batch> want; (want = one.next());) EXPECT_TRUE(several.next()->data.equal(want->data));
}

struct Endless final : torch::data::datasets::Dataset<Endless> {
  torch::data::Example<> get(size_t /*index*/) override { return {}; }
  std::optional<size_t> size() const override { return {}; }
};

TEST(TorchDataset, BadUsesAreRefused) {
  EXPECT_THAT(error_of([] { torch_dataset(Endless()); }), HasSubstr("has no size"));
  const auto dataset = torch_dataset(Squares(3));
  EXPECT_THROW(dataset->get_batch(torch::tensor({3})), c10::ValueError);
}

std::vector<int64_t> epoch_of(Loader& loader, int64_t epoch) {
  loader.set_epoch(epoch);
  std::vector<int64_t> numbers;
  while (const auto batch = loader.next())
    for (const int64_t number : values(batch->data.select(1, 0))) numbers.push_back(number);
  return numbers;
}

TEST(SamplerLoader, EpochsAreThoseOfTheSampler) {
  namespace samplers = torch::data::samplers;
  const auto dataset = torch_dataset(Squares(7));
  SamplerLoader in_order(dataset, samplers::SequentialSampler(7), {.batch_size = 3});
  EXPECT_EQ(in_order.size(), 3);
  EXPECT_THAT(epoch_of(in_order, 0), ElementsAre(0, 1, 2, 3, 4, 5, 6));

  SamplerLoader random(dataset, samplers::RandomSampler(7), {.batch_size = 3, .seed = 40});
  torch::manual_seed(42);
  const at::Tensor want = torch::randperm(7, at::kLong);
  torch::manual_seed(5);
  const at::Tensor next = torch::rand({3});
  torch::manual_seed(5);
  EXPECT_EQ(epoch_of(random, 2), values(want)) << "seeded with 40 + 2";
  EXPECT_TRUE(torch::rand({3}).equal(next)) << "the generator has the state from before";
  const auto first = epoch_of(random, 0);
  EXPECT_NE(epoch_of(random, 1), first);
  EXPECT_EQ(epoch_of(random, 0), first);

  std::vector<int64_t> both;
  for (const size_t rank : {0, 1}) {
    SamplerLoader part(dataset, samplers::DistributedRandomSampler(7, 2, rank, /*allow_duplicates=*/false),
                       {.batch_size = 2});
    const auto mine = epoch_of(part, 3);
    EXPECT_NE(epoch_of(part, 4), mine) << "it is told the epoch";
    both.insert(both.end(), mine.begin(), mine.end());
  }
  EXPECT_THAT(both, testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(SamplerLoader, ContinuesInTheMiddleOfAnEpoch) {
  const auto dataset = torch_dataset(Squares(40));
  const DataLoaderOptions options{.batch_size = 4, .seed = 1, .num_workers = 2};
  SamplerLoader whole(dataset, torch::data::samplers::RandomSampler(40), options),
      resumed(dataset, torch::data::samplers::RandomSampler(40), options);
  whole.set_epoch(1), resumed.set_epoch(1);
  for (int i = 0; i < 4; ++i) whole.next();
  resumed.skip(4);
  for (std::optional<Batch> want; (want = whole.next());) EXPECT_TRUE(resumed.next()->data.equal(want->data));
  EXPECT_FALSE(resumed.next());
}

/// A sampler of a user's, which draws a sample more than once.
struct Repeating final : torch::data::samplers::Sampler<> {
  void reset(std::optional<size_t> /*new_size*/) override { left = 5; }
  std::optional<std::vector<size_t>> next(size_t batch_size) override {
    if (left == 0) return {};
    std::vector<size_t> batch(std::min(batch_size, left), last);
    left -= batch.size();
    return batch;
  }
  void save(torch::serialize::OutputArchive& /*archive*/) const override {}
  void load(torch::serialize::InputArchive& /*archive*/) override {}
  size_t left = 0, last = 2;
};

TEST(SamplerLoader, BadSamplersAreRefused) {
  const auto dataset = torch_dataset(Squares(3));
  SamplerLoader repeating(dataset, Repeating(), {.batch_size = 2});
  EXPECT_THAT(epoch_of(repeating, 0), ElementsAre(2, 2, 2, 2, 2));
  Repeating wrong;
  wrong.last = 3;
  EXPECT_THROW(SamplerLoader(dataset, wrong), c10::ValueError);
  EXPECT_THAT(error_of([&] { SamplerLoader(dataset, torch::data::samplers::SequentialSampler(0)); }),
              HasSubstr("gives no sample in epoch 0"));
  EXPECT_THAT(error_of([&] { SamplerLoader(dataset, Repeating(), {.shuffle = true}); }),
              HasSubstr("the sampler decides on the order"));
  EXPECT_THAT(error_of([&] { SamplerLoader(nullptr, Repeating()); }), HasSubstr("no dataset"));
}

}  // namespace
}  // namespace mantissa::torch_dataset_test
