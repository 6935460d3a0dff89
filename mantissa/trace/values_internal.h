#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "mantissa/trace/trace_nonfinite.h"

namespace mantissa::nonfinite_internal {

/// True if `t` has its own memory with values in it.
bool is_strided(const at::Tensor& t);

/// Returns the strided tensor that holds the values of `t`; undefined if none of them can be inf or nan.
at::Tensor values_of(const at::Tensor& t);

struct Finiteness {
  bool nan = false, inf = false;
  bool finite() const { return !nan && !inf; }
};

/// Checks in one pass without a temporary. If there is a nan, an inf may go unnoticed.
Finiteness look_at(const at::Tensor& values);

/// Returns `t` without dimensions that only repeat it: for a bias that was expanded over a batch, the bias.
at::Tensor unexpanded(const at::Tensor& t);

/// True if all values are 0 or -inf, as in an additive attention mask.
bool is_mask(const at::Tensor& values);

OperandFacts facts_of(const at::Tensor& values, std::string name = {});

/// The bytes of a storage between a tensor's first value and its last. Views share a storage, so a value is
/// identified by its bytes, whichever view reads it.
struct Span {
  c10::StorageImpl* storage;
  int64_t begin, end;
  bool dense;  ///< whether it fills these bytes

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
