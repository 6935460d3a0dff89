#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "mantissa/trace/trace_nonfinite.h"

namespace mantissa::nonfinite_internal {

/// Whether `t` has memory of its own with values in it.
bool is_strided(const at::Tensor& t);

/// The strided tensor that holds the values of `t`; undefined if it has none that could be inf or nan.
at::Tensor values_of(const at::Tensor& t);

struct Finiteness {
  bool nan = false, inf = false;
  bool finite() const { return !nan && !inf; }
};

/// One pass without a temporary. Where there is a nan, an inf beside it is not seen.
Finiteness look_at(const at::Tensor& values);

/// `t` without the dimensions that only repeat it: of a bias that was expanded over a batch, the bias.
at::Tensor unexpanded(const at::Tensor& t);

/// Whether there is nothing but 0 and -inf, as in an additive attention mask.
bool is_mask(const at::Tensor& values);

OperandFacts facts_of(const at::Tensor& values, std::string name = {});

/// The bytes of a storage between a tensor's first value and its last. Views share a storage, so that a value
/// is known by its bytes under whichever view it is read.
struct Span {
  c10::StorageImpl* storage;
  int64_t begin, end;
  bool dense;  ///< it fills its bytes

  explicit Span(const at::Tensor& t)
      : storage(t.storage().unsafeGetStorageImpl()),
        begin(t.storage_offset() * t.element_size()),
        end(begin) {
    for (int64_t d = 0; d < t.dim(); ++d) end += (t.size(d) - 1) * t.stride(d) * t.element_size();
    end += t.element_size();
    dense = end - begin == t.numel() * t.element_size();
  }
  bool overlaps(const Span& other) const { return begin < other.end && other.begin < end; }
  bool covers(const Span& other) const { return dense && begin <= other.begin && other.end <= end; }
};

}  // namespace mantissa::nonfinite_internal
