#include "mantissa/data/dataset.h"

#include <cmath>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>
#include <c10/util/Exception.h>

namespace mantissa {

void check_indices(const at::Tensor& indices, int64_t size, const char* what) {
  TORCH_CHECK_VALUE(
      indices.defined() && indices.dim() == 1 && indices.scalar_type() == at::kLong && indices.is_cpu(), what,
      ": indices must be one row of int64 on the CPU, but are ",
      indices.defined() ? indices.toString() : "undefined", "; convert them with .to(at::kLong).flatten()");
  const int64_t* index = indices.const_data_ptr<int64_t>();
  const int64_t n = indices.size(0), stride = indices.stride(0);
  for (int64_t i = 0; i < n; ++i) {
    TORCH_CHECK_VALUE(index[i * stride] >= 0 && index[i * stride] < size, what, ": index ", index[i * stride],
                      " is outside 0 to ", size - 1, "; draw indices below size()");
  }
}

TensorDataset::TensorDataset(at::Tensor data, at::Tensor target)
    : data_(std::move(data)), target_(std::move(target)) {
  TORCH_CHECK_VALUE(
      data_.defined() && data_.dim() > 0,
      "TensorDataset: data need a first dimension that counts the samples; unsqueeze(0) a single one");
  TORCH_CHECK_VALUE(!target_.defined() || (target_.dim() > 0 && target_.size(0) == data_.size(0)),
                    "TensorDataset: data of shape ", data_.sizes(), " and target of shape ", target_.sizes(),
                    " do not count the same samples; give one target for each");
}

Batch TensorDataset::get_batch(const at::Tensor& indices) const {
  check_indices(indices, size(), "TensorDataset::get_batch");
  Batch batch;
  batch.data = data_.index_select(0, indices.to(data_.device()));
  if (target_.defined()) batch.target = target_.index_select(0, indices.to(target_.device()));
  return batch;
}

Subset::Subset(std::shared_ptr<const Dataset> dataset, const at::Tensor& indices)
    : dataset_(std::move(dataset)) {
  TORCH_CHECK_VALUE(dataset_, "Subset: no dataset; give the one to take samples from");
  check_indices(indices, dataset_->size(), "Subset");
  indices_ = indices.clone();
}

Batch Subset::get_batch(const at::Tensor& indices) const {
  check_indices(indices, size(), "Subset::get_batch");
  return dataset_->get_batch(indices_.index_select(0, indices));
}

Batch Subset::draw_batch(const at::Tensor& indices, const at::Generator& generator) const {
  check_indices(indices, size(), "Subset::get_batch");
  return dataset_->draw_batch(indices_.index_select(0, indices), generator);
}

int64_t held_out_size(int64_t size, double held_out_fraction, const char* what) {
  TORCH_CHECK_VALUE(held_out_fraction > 0 && held_out_fraction < 1, what, ": the held-out fraction ",
                    held_out_fraction, " is not between 0 and 1; 0.1 holds out a tenth");
  const auto held_out = static_cast<int64_t>(std::llround(static_cast<double>(size) * held_out_fraction));
  TORCH_CHECK_VALUE(held_out > 0 && held_out < size, what, ": holding out ", held_out_fraction, " of ", size,
                    " leaves ", size - held_out, " to train on and ", held_out,
                    " to validate; give more data or another fraction");
  return held_out;
}

std::pair<std::shared_ptr<const Dataset>, std::shared_ptr<const Dataset>> random_split(
    const std::shared_ptr<const Dataset>& dataset, double held_out_fraction, uint64_t seed) {
  TORCH_CHECK_VALUE(dataset, "random_split: no dataset; give the one to split");
  const int64_t size = dataset->size();
  const int64_t held_out = held_out_size(size, held_out_fraction, "random_split");
  const at::Tensor order =
      at::randperm(size, at::detail::createCPUGenerator(seed), at::TensorOptions().dtype(at::kLong));
  return {std::make_shared<Subset>(dataset, order.narrow(0, 0, size - held_out)),
          std::make_shared<Subset>(dataset, order.narrow(0, size - held_out, held_out))};
}

}  // namespace mantissa
