#include "mantissa/data/batch_memory.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace mantissa {
namespace {

struct Block {
  c10::DataPtr data;
  size_t bytes = 0;
};

}  // namespace

struct BatchMemory::Free {
  std::mutex mutex;
  std::vector<Block> blocks;

  Block take(size_t bytes) {
    {
      const std::lock_guard lock(mutex);
      // The last batch of an epoch is smaller. A block of twice the size would be wasted on it.
      const auto fits = [&](const Block& block) { return block.bytes >= bytes && block.bytes / 2 <= bytes; };
      if (const auto found = std::find_if(blocks.begin(), blocks.end(), fits); found != blocks.end()) {
        Block block = std::move(*found);
        blocks.erase(found);
        return block;
      }
    }
    return {c10::GetCPUAllocator()->allocate(bytes), bytes};
  }
  void give_back(Block block) {
    constexpr size_t kMaxBlocks = 8;
    Block oldest;  // is freed behind the lock
    const std::lock_guard lock(mutex);
    if (blocks.size() == kMaxBlocks) {
      oldest = std::move(blocks.front());
      blocks.erase(blocks.begin());
    }
    blocks.push_back(std::move(block));
  }
};

BatchMemory::BatchMemory() : free_(std::make_shared<Free>()) {}

at::Tensor BatchMemory::take(at::IntArrayRef sizes, at::ScalarType dtype) const {
  const auto values = static_cast<size_t>(c10::multiply_integers(sizes));
  const auto block = std::make_shared<Block>(free_->take(values * c10::elementSize(dtype)));
  return at::from_blob(
      block->data.get(), sizes, [free = free_, block](void*) { free->give_back(std::move(*block)); },
      at::TensorOptions(dtype).device(at::kCPU));
}

}  // namespace mantissa
