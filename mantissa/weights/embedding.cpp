#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/nonzero.h>
#include <c10/util/Exception.h>

#include "mantissa/weights/operators_internal.h"
#include "mantissa/weights/packed_tensor_internal.h"

namespace mantissa::packed {
namespace {

void check_table(const char* operation, const at::Tensor& weight, const at::Tensor& indices) {
  if (!find_data(weight)) refuse(operation, find_data(indices) ? indices : weight);
  check_frozen(weight, operation);
  TORCH_CHECK_VALUE(weight.dim() == 2 && !is_transposed(weight), operation, ": a packed weight (",
                    data_of(weight)->description(), ") of ", weight.sizes(),
                    " is no table of rows; pass mantissa::dequantize(weight)");
  TORCH_CHECK_TYPE(indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt, operation,
                   ": the indices must be Long or Int; got ", indices.scalar_type());
}

}  // namespace

// The last three arguments concern the gradient of the weight, which a packed one does not have.
// NOLINTBEGIN(performance-unnecessary-value-param): the dispatcher calls a kernel with exactly these types
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& indices, c10::SymInt /*padding_idx*/,
                     bool /*scale_grad_by_freq*/, bool /*sparse*/) {
  // NOLINTEND(performance-unnecessary-value-param)
  check_table("embedding", weight, indices);
  const at::Tensor rows =
      data_of(weight)->dequantize_rows(indices.reshape(-1).to(at::kLong), weight.scalar_type());
  at::DimVector sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  return rows.view(sizes);
}

EmbeddingBag embedding_bag(const at::Tensor& weight, const at::Tensor& indices, const at::Tensor& offsets,
                           bool scale_grad_by_freq, int64_t mode, bool sparse,
                           const std::optional<at::Tensor>& per_sample_weights, bool include_last_offset) {
  return embedding_bag_padded(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights,
                              include_last_offset, std::nullopt);
}

// libtorch's kernel gets a table of only those rows that occur, and indices into it.
EmbeddingBag embedding_bag_padded(const at::Tensor& weight, const at::Tensor& indices,
                                  const at::Tensor& offsets, bool scale_grad_by_freq, int64_t mode,
                                  bool sparse, const std::optional<at::Tensor>& per_sample_weights,
                                  bool include_last_offset, std::optional<int64_t> padding_idx) {
  check_table("embedding_bag", weight, indices);
  const int64_t count = weight.size(0);
  TORCH_CHECK_VALUE(!padding_idx || (*padding_idx >= -count && *padding_idx < count),
                    "embedding_bag: padding_idx ", *padding_idx, " is no row of the packed weight of ",
                    weight.sizes());
  const auto [used, places] = at::_unique(indices.to(at::kLong), /*sorted=*/true, /*return_inverse=*/true);
  const at::Tensor rows = data_of(weight)->dequantize_rows(used, weight.scalar_type());
  std::optional<int64_t> padding;
  if (padding_idx) {
    const int64_t row = *padding_idx < 0 ? *padding_idx + count : *padding_idx;
    const at::Tensor found = at::nonzero(used == row);
    if (found.numel() > 0) padding = found.item<int64_t>();
  }
  return at::embedding_bag(rows, places, offsets.to(at::kLong), scale_grad_by_freq, mode, sparse,
                           per_sample_weights, include_last_offset, padding);
}

}  // namespace mantissa::packed
