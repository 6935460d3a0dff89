#include "mantissa/data/loader.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <c10/util/Exception.h>

#include "mantissa/data/batch_workers_internal.h"

namespace mantissa {
namespace {

const auto kIndex = at::TensorOptions().dtype(at::kLong).device(at::kCPU);

int64_t batches_of(int64_t samples, const DataLoaderOptions& options) {
  // Rounding up by adding batch_size - 1 first would overflow for a batch size near 2^63.
  const int64_t whole = samples / options.batch_size;
  return whole + (!options.drop_last && samples % options.batch_size != 0 ? 1 : 0);
}

at::Tensor draw(int64_t size, int64_t samples, const DataLoaderOptions& options, int64_t epoch) {
  if (!options.shuffle && !options.replacement) return at::arange(samples, kIndex);
  const at::Generator generator = at::detail::createCPUGenerator(options.seed + static_cast<uint64_t>(epoch));
  if (options.replacement) return at::randint(size, {samples}, generator, kIndex);
  return at::randperm(size, generator, kIndex).narrow(0, 0, samples);
}

/// Maps seeds that are close together to distant ones, by the finalizer of SplitMix64 (Steele, Lea, Flood
/// 2014).
uint64_t scrambled(uint64_t seed) {
  seed += 0x9E3779B97F4A7C15;
  seed = (seed ^ seed >> 30) * 0xBF58476D1CE4E5B9;
  seed = (seed ^ seed >> 27) * 0x94D049BB133111EB;
  return seed ^ seed >> 31;
}

/// Reads the batches of one epoch by their number. It holds no reference to its loader, which may be moved.
class EpochReader {
 public:
  EpochReader(std::shared_ptr<const Dataset> dataset, const DataLoaderOptions& options, int64_t samples,
              int64_t epoch)
      : dataset_(std::move(dataset)),
        order_(draw(dataset_->size(), samples, options, epoch)),
        batch_size_(options.batch_size),
        epoch_(epoch),
        transform_(options.transform),
        // A CPU generator uses only 32 bits of a seed. The batches of a run have consecutive seeds, so that
        // no two of them share these bits.
        first_seed_(scrambled(options.seed) +
                    static_cast<uint64_t>(epoch) * static_cast<uint64_t>(batches_of(samples, options))) {}

  Batch operator()(int64_t number) const {
    const int64_t begin = number * batch_size_;
    const at::Tensor indices = order_.narrow(0, begin, std::min(batch_size_, order_.size(0) - begin));
    try {
      const at::Generator generator =
          at::detail::createCPUGenerator(first_seed_ + static_cast<uint64_t>(number));
      Batch batch = dataset_->draw_batch(indices, generator);
      return transform_ ? transform_(std::move(batch), generator) : batch;
    } catch (c10::Error& error) {
      error.add_context("reading " + name_of(number, indices));
      throw;
    } catch (const std::exception& error) {
      std::throw_with_nested(
          c10::Error("DataLoader: cannot read " + name_of(number, indices) + ": " + error.what()));
    } catch (...) {
      std::throw_with_nested(c10::Error("DataLoader: cannot read " + name_of(number, indices) +
                                        ": an exception of an unknown type"));
    }
  }

 private:
  /// Returns a text such as "batch 3 of epoch 0: samples 4, 9".
  std::string name_of(int64_t number, const at::Tensor& indices) const {
    constexpr int64_t kMaxListedSamples = 8;
    std::string text =
        "batch " + std::to_string(number) + " of epoch " + std::to_string(epoch_) + ": samples ";
    const int64_t* index = indices.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < std::min(indices.size(0), kMaxListedSamples); ++i)
      text += (i == 0 ? "" : ", ") + std::to_string(index[i]);
    return indices.size(0) > kMaxListedSamples ? text + ", ..." : text;
  }

  std::shared_ptr<const Dataset> dataset_;
  at::Tensor order_;
  int64_t batch_size_, epoch_;
  Transform transform_;
  uint64_t first_seed_;
};

}  // namespace

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, const DataLoaderOptions& options)
    : dataset_(std::move(dataset)), options_(options) {
  TORCH_CHECK_VALUE(dataset_, "DataLoader: no dataset; give one to read");
  const int64_t size = dataset_->size();
  TORCH_CHECK_VALUE(size > 0, "DataLoader: the dataset has no samples; give one that has some");
  TORCH_CHECK_VALUE(options.batch_size >= 1, "DataLoader: batch_size ", options.batch_size,
                    " makes no batches; give 1 or more");
  TORCH_CHECK_VALUE(options.num_samples >= 0, "DataLoader: num_samples ", options.num_samples,
                    " is negative; give 0 for the whole dataset, or a count");
  TORCH_CHECK_VALUE(options.replacement || options.num_samples <= size, "DataLoader: num_samples ",
                    options.num_samples, " exceeds the dataset's ", size,
                    "; lower it or set replacement, which may draw a sample twice");
  TORCH_CHECK_VALUE(options.num_workers >= 0, "DataLoader: num_workers ", options.num_workers,
                    " is negative; give 0 to read in the calling thread, or a count of threads");
  TORCH_CHECK_VALUE(options.prefetch_factor >= 1, "DataLoader: prefetch_factor ", options.prefetch_factor,
                    " leaves the workers nothing to read; give 1 or more");
  samples_ = options.num_samples == 0 ? size : options.num_samples;
  TORCH_CHECK_VALUE(batches_of(samples_, options) > 0, "DataLoader: drop_last leaves no batch, because ",
                    samples_, " samples do not fill one of ", options.batch_size,
                    "; lower batch_size or keep the last batch");
}

DataLoader::~DataLoader() = default;
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;

void DataLoader::set_epoch(int64_t epoch) {
  workers_.reset();
  read_ = EpochReader(dataset_, options_, samples_, epoch);
  position_ = 0;
}

std::optional<Batch> DataLoader::next() {
  if (!read_) set_epoch(0);
  if (position_ == size()) {
    workers_.reset();
    return std::nullopt;
  }
  if (!workers_ && options_.num_workers > 0)
    workers_ = std::make_unique<BatchWorkers>(read_, position_, size(), options_.num_workers,
                                              options_.prefetch_factor);
  const int64_t number = position_++;
  return workers_ ? workers_->next() : read_(number);
}

void DataLoader::skip(int64_t batches) {
  if (!read_) set_epoch(0);
  workers_.reset();
  position_ += std::clamp<int64_t>(batches, 0, size() - position_);
}

int64_t DataLoader::size() const { return batches_of(samples_, options_); }

OrderedLoader::OrderedLoader(std::shared_ptr<const Dataset> dataset, const at::Tensor& order)
    : dataset_(std::move(dataset)) {
  TORCH_CHECK_VALUE(dataset_, "OrderedLoader: no dataset; give one to read");
  TORCH_CHECK_VALUE(
      order.defined() && order.dim() == 2 && order.numel() > 0,
      "OrderedLoader: order must have the shape [batches, batch_size], neither of them 0; reshape it");
  check_indices(order.flatten(), dataset_->size(), "OrderedLoader");
  order_ = order.clone(at::MemoryFormat::Contiguous);
}

void OrderedLoader::set_epoch(int64_t /*epoch*/) { position_ = 0; }

std::optional<Batch> OrderedLoader::next() {
  if (position_ == order_.size(0)) return std::nullopt;
  return dataset_->get_batch(order_.select(0, position_++));
}

void OrderedLoader::skip(int64_t batches) {
  position_ += std::clamp<int64_t>(batches, 0, size() - position_);
}

}  // namespace mantissa
