#include "mantissa/data/loader.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <c10/util/Exception.h>

namespace mantissa {
namespace {

const auto kIndex = at::TensorOptions().dtype(at::kLong).device(at::kCPU);

int64_t batches_of(int64_t samples, const DataLoaderOptions& options) {
  // Without the sum, which overflows for a batch size near 2^63.
  const int64_t whole = samples / options.batch_size;
  return whole + (!options.drop_last && samples % options.batch_size != 0 ? 1 : 0);
}

at::Tensor draw(int64_t size, int64_t samples, const DataLoaderOptions& options, int64_t epoch) {
  if (!options.shuffle && !options.replacement) return at::arange(samples, kIndex);
  const at::Generator generator = at::detail::createCPUGenerator(options.seed + static_cast<uint64_t>(epoch));
  if (options.replacement) return at::randint(size, {samples}, generator, kIndex);
  return at::randperm(size, generator, kIndex).narrow(0, 0, samples);
}

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
  samples_ = options.num_samples == 0 ? size : options.num_samples;
  TORCH_CHECK_VALUE(batches_of(samples_, options) > 0, "DataLoader: drop_last leaves no batch, for ",
                    samples_, " samples do not fill one of ", options.batch_size,
                    "; lower batch_size or keep the last batch");
}

void DataLoader::set_epoch(int64_t epoch) {
  order_ = draw(dataset_->size(), samples_, options_, epoch);
  position_ = 0;
}

std::optional<Batch> DataLoader::next() {
  if (!order_.defined()) set_epoch(0);
  const int64_t n = std::min(options_.batch_size, samples_ - position_);
  if (n == 0 || (options_.drop_last && n < options_.batch_size)) return std::nullopt;
  const at::Tensor indices = order_.narrow(0, position_, n);
  position_ += n;
  return dataset_->get_batch(indices);
}

void DataLoader::skip(int64_t batches) {
  if (!order_.defined()) set_epoch(0);
  const int64_t left = (samples_ - position_ + options_.batch_size - 1) / options_.batch_size;
  position_ = batches >= left ? samples_ : position_ + batches * options_.batch_size;
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

}  // namespace mantissa
