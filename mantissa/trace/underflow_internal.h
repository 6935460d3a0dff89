#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/core/weak_map.h"
#include "mantissa/trace/operation_internal.h"
#include "mantissa/trace/values_internal.h"

namespace mantissa::nonfinite_internal {

/// What fp16, which ends at 6e-8, made 0 of: for each such tensor the values that float32 would have kept,
/// through the operations that follow. A division by a 0 of this kind is not the program's.
class Underflows {
 public:
  struct Flushed {
    std::string by;    ///< the operation that made the first 0 of them
    double value = 0;  ///< the largest that it made 0 of
  };

  /// An operation has ended and returned `outputs`; its operands are as it found them in `frame`.
  void note(const Frame& frame, const std::vector<at::Tensor>& outputs);
  /// What was flushed, if the operation would be finite without; null otherwise.
  const Flushed* explaining(const Frame& frame) const;

 private:
  struct Kept {
    Span span;
    int64_t element_size = 0, offset = 0;
    at::Tensor values;  ///< float32, laid out as the tensor
    Flushed flushed;
  };

  const Kept* find(const at::Tensor& t) const;
  /// A copy of the part of `kept` that `t` sees; undefined if there is none.
  static at::Tensor stand_in(const at::Tensor& t, const Kept* kept);
  void forget(const at::Tensor& t);
  void keep(const at::Tensor& t, const at::Tensor& values, Flushed flushed);

  WeakMap<c10::Storage, std::vector<Kept>> kept_;
};

}  // namespace mantissa::nonfinite_internal
