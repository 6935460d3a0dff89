#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/core/weak_map.h"
#include "mantissa/trace/operation_internal.h"
#include "mantissa/trace/values_internal.h"

namespace mantissa::nonfinite_internal {

/// Records values that fp16 flushed to 0, because they were below 6e-8. For each such tensor it keeps the
/// values that float32 would have, through the operations that follow. A division by such a 0 is not a fault
/// of the program.
class Underflows {
 public:
  struct Flushed {
    std::string by;    ///< the operation that flushed the first of them
    double value = 0;  ///< the largest value that it flushed
  };

  /// Records an operation that ended and returned `outputs`. `frame` holds its operands as they were at its
  /// start.
  void note(const Frame& frame, const std::vector<at::Tensor>& outputs);
  /// Returns the flushed values, if the operation would be finite without the flush, and null otherwise.
  const Flushed* explaining(const Frame& frame) const;

 private:
  struct Kept {
    Span span;
    int64_t element_size = 0, offset = 0;
    at::Tensor values;  ///< float32, in the layout of the tensor
    Flushed flushed;
  };

  const Kept* find(const at::Tensor& t) const;
  /// Returns a copy of the part of `kept` that `t` covers; undefined if there is none.
  static at::Tensor stand_in(const at::Tensor& t, const Kept* kept);
  void forget(const at::Tensor& t);
  void keep(const at::Tensor& t, const at::Tensor& values, Flushed flushed);

  WeakMap<c10::Storage, std::vector<Kept>> kept_;
};

}  // namespace mantissa::nonfinite_internal
