#include "mantissa/data/batch_memory.h"

#include <gtest/gtest.h>
#include <optional>
#include <thread>
#include <vector>

#include <torch/torch.h>

namespace mantissa {
namespace {

TEST(BatchMemory, IsUsedAgain) {
  const BatchMemory memory;
  std::optional<at::Tensor> first = memory.take({4, 100}, at::kFloat);
  EXPECT_TRUE(first->is_contiguous() && first->sizes() == at::IntArrayRef({4, 100}));
  const void* const bytes = first->const_data_ptr();
  first->fill_(1);
  const at::Tensor second = memory.take({4, 100}, at::kFloat);
  EXPECT_NE(second.const_data_ptr(), bytes) << "the first one is alive";
  const at::Tensor view = first->select(0, 2);
  first.reset();
  EXPECT_NE(memory.take({4, 100}, at::kFloat).const_data_ptr(), bytes) << "so is a view of it";
}

TEST(BatchMemory, AnotherSizeTakesTheSameMemoryIfItFits) {
  const BatchMemory memory;
  const void* const bytes = memory.take({64, 10}, at::kFloat).const_data_ptr();
  EXPECT_EQ(memory.take({64, 10}, at::kFloat).const_data_ptr(), bytes);
  EXPECT_EQ(memory.take({40, 10}, at::kFloat).const_data_ptr(), bytes);
  EXPECT_NE(memory.take({8, 10}, at::kFloat).const_data_ptr(), bytes) << "most of it would be wasted";
  EXPECT_NE(memory.take({65, 10}, at::kFloat).const_data_ptr(), bytes) << "it is too small";
}

TEST(BatchMemory, NewSizesReplaceOldOnes) {
  const BatchMemory memory;
  const auto take = [&](int64_t step) { return memory.take({int64_t{1024} << (2 * step)}, at::kByte); };
  std::vector<at::Tensor> alive;
  std::vector<const void*> bytes;
  for (int64_t i = 0; i < 9; ++i) {
    alive.push_back(take(i));
    bytes.push_back(alive.back().const_data_ptr());
  }
  for (at::Tensor& tensor : alive) tensor.reset();  // of nine pieces of memory, the last eight are kept
  for (int64_t i = 8; i > 0; --i) {
    alive[static_cast<size_t>(i)] = take(i);
    EXPECT_EQ(alive[static_cast<size_t>(i)].const_data_ptr(), bytes[static_cast<size_t>(i)]) << i;
  }
}

TEST(BatchMemory, NothingIsATensorToo) {
  const BatchMemory memory;
  EXPECT_EQ(memory.take({0, 3}, at::kFloat).numel(), 0);
  EXPECT_EQ(memory.take({}, at::kLong).numel(), 1);
}

TEST(BatchMemory, TensorsOutliveItAndDieInOtherThreads) {
  std::optional<BatchMemory> memory(std::in_place);
  std::vector<at::Tensor> kept;
  for (int i = 0; i < 20; ++i) kept.push_back(memory->take({1000}, at::kDouble).fill_(i));
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const at::Tensor mine = memory->take({1000}, at::kDouble).fill_(t);
        if (!mine.eq(t).all().item<bool>()) ADD_FAILURE() << "two tensors have the same memory";
      }
    });
  for (std::thread& thread : threads) thread.join();
  memory.reset();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(kept[static_cast<size_t>(i)].eq(i).sum().item<int64_t>(), 1000);
}

}  // namespace
}  // namespace mantissa
