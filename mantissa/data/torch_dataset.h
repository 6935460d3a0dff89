#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <torch/data/example.h>

#include "mantissa/data/dataset.h"
#include "mantissa/data/loader.h"

// libtorch's own datasets and samplers, for the DataLoader and the Trainer.
namespace mantissa {

namespace torch_examples {

template <typename T>
inline constexpr bool kHasTarget = !std::is_void_v<typename T::TargetType>;

/// Returns one example as a batch, or as a sample of one.
template <typename T>
Batch batch_of(const T& example) {
  if constexpr (kHasTarget<T>) {
    return {example.data, example.target, {}};
  } else {
    return {example.data, {}, {}};
  }
}

/// Returns examples as a batch: each tensor gets a first dimension.
template <typename T>
Batch batch_of(const std::vector<T>& examples) {
  std::vector<Batch> samples;
  samples.reserve(examples.size());
  for (const T& example : examples) samples.push_back(batch_of(example));
  return stack(samples);
}

}  // namespace torch_examples

/// Any of libtorch's datasets with random access: MNIST, TensorDataset, one of the user's own, and what map() returns for
/// them, also with Stack<>. torch_dataset() makes one.
///
/// Shapes:  each tensor of an example gets a first dimension; what Stack<> has stacked stays as it is.
/// Threads: libtorch's get_batch() is called by one thread at a time, because it need not be const.
/// Errors:  c10::ValueError from the constructor for a dataset without a size, and those of stack().
/// Example: torch_dataset_test.cpp, TorchDataset.ReadsWhatLibtorchsLoaderReads
template <typename Wrapped>
class TorchDataset final : public Dataset {
 public:
  explicit TorchDataset(Wrapped dataset) : dataset_(std::move(dataset)) {
    const auto size = dataset_.size();
    TORCH_CHECK_VALUE(size.has_value(),
                      "TorchDataset: the dataset has no size, so its samples have no numbers; give one with "
                      "random access, or write a mantissa::Loader for it");
    size_ = static_cast<int64_t>(*size);
  }
  int64_t size() const override { return size_; }
  Batch get_batch(const at::Tensor& indices) const override {
    check_indices(indices, size_, "TorchDataset");
    const at::Tensor row = indices.contiguous();
    const auto* const first = row.const_data_ptr<int64_t>();
    const std::vector<size_t> numbers(first, first + row.numel());
    const std::lock_guard lock(mutex_);
    return torch_examples::batch_of(dataset_.get_batch(numbers));
  }

 private:
  mutable std::mutex mutex_;
  mutable Wrapped dataset_;
  int64_t size_ = 0;
};

template <typename Wrapped>
std::shared_ptr<const Dataset> torch_dataset(Wrapped dataset) {
  return std::make_shared<TorchDataset<Wrapped>>(std::move(dataset));
}

/// Reads a dataset in the order of one of libtorch's samplers: RandomSampler, SequentialSampler, DistributedRandomSampler, or one
/// of the user's own whose batches are numbers of samples.
///
/// The sampler draws the whole order of an epoch when the epoch begins. While it draws, libtorch's generator for the CPU is seeded
/// with options.seed + epoch, and afterwards it has the state from before. So equal numbers of epochs give equal orders, and a resumed
/// run continues in the middle of an epoch bit for bit. A sampler with set_epoch() is told the epoch.
/// Memory:  8 bytes for each sample of an epoch, twice.
/// Threads: one at a time; options.num_workers threads read ahead.
/// Errors:  c10::ValueError for options that choose an order (shuffle, replacement, num_samples), and for a sampler that
///          gives no number, or one that the dataset does not have; those of DataLoader.
/// Example: torch_dataset_test.cpp, SamplerLoader.EpochsAreThoseOfTheSampler
class SamplerLoader final : public Loader {
 public:
  template <typename Sampler>
  SamplerLoader(std::shared_ptr<const Dataset> dataset, Sampler sampler,
                const DataLoaderOptions& options = {})
      : dataset_(std::move(dataset)), options_(options) {
    TORCH_CHECK_VALUE(dataset_, "SamplerLoader: no dataset; give the one to read");
    TORCH_CHECK_VALUE(!options.shuffle && !options.replacement && options.num_samples == 0,
                      "SamplerLoader: the sampler decides on the order; leave shuffle, replacement and "
                      "num_samples out");
    order_ = [sampler = std::make_shared<Sampler>(std::move(sampler)),
              batch_size = static_cast<size_t>(std::max<int64_t>(1, options.batch_size))](int64_t epoch) {
      if constexpr (requires { sampler->set_epoch(size_t{}); })
        sampler->set_epoch(static_cast<size_t>(epoch));
      sampler->reset(std::nullopt);
      std::vector<int64_t> order;
      while (const auto batch = sampler->next(batch_size))
        order.insert(order.end(), batch->begin(), batch->end());
      return order;
    };
    set_epoch(0);
  }

  void set_epoch(int64_t epoch) override {
    std::vector<int64_t> order;
    {
      const Seeded seeded(options_.seed + static_cast<uint64_t>(epoch));
      order = order_(epoch);
    }
    TORCH_CHECK_VALUE(!order.empty(), "SamplerLoader: the sampler gives no sample in epoch ", epoch);
    const at::Tensor numbers = at::tensor(order, at::TensorOptions(at::kLong).device(at::kCPU));
    loader_.emplace(std::make_shared<Subset>(dataset_, numbers), options_);
    loader_->set_epoch(epoch);
  }
  std::optional<Batch> next() override { return loader_->next(); }
  /// Reads no sample.
  void skip(int64_t batches) override { loader_->skip(batches); }
  /// Returns the number of batches in this epoch.
  int64_t size() const override { return loader_->size(); }

 private:
  /// While it lives, libtorch's generator for the CPU has this seed.
  class Seeded {
   public:
    explicit Seeded(uint64_t seed) : generator_(at::detail::getDefaultCPUGenerator()) {
      const std::lock_guard lock(generator_.mutex());
      state_ = generator_.get_state();
      generator_.set_current_seed(seed);
    }
    ~Seeded() {
      const std::lock_guard lock(generator_.mutex());
      generator_.set_state(state_);
    }
    Seeded(const Seeded&) = delete;
    Seeded& operator=(const Seeded&) = delete;

   private:
    at::Generator generator_;
    at::Tensor state_;
  };

  std::shared_ptr<const Dataset> dataset_;
  DataLoaderOptions options_;
  std::function<std::vector<int64_t>(int64_t epoch)> order_;
  std::optional<DataLoader> loader_;
};

}  // namespace mantissa
