#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/trace/history_internal.h"
#include "mantissa/trace/modules_internal.h"
#include "mantissa/trace/operation_internal.h"
#include "mantissa/trace/trace_nonfinite.h"
#include "mantissa/trace/underflow_internal.h"
#include "mantissa/trace/values_internal.h"

namespace mantissa::nonfinite_internal {

/// What the operands of an operation held.
struct Operands {
  Finiteness seen;
  bool constant_inf = false, constant_nan = false;
  bool reduced = false;  ///< whether one has fewer than 32 bits
  std::vector<size_t> causes;
  std::vector<OperandFacts> facts;
};

/// Decides from the operands of an operation whether it is to blame for a non-finite result.
class Judge {
 public:
  Judge(const Modules& modules, History& history, const Underflows& underflows)
      : modules_(modules), history_(history), underflows_(underflows) {}

  /// Reads all operands. A non-finite operand that no operation has made becomes an event of its own.
  /// `reader` holds the pass and the place.
  Operands read(const Frame& frame, const NonFiniteOrigin& reader);
  /// Reads one tensor of argument `index`: `now` as it is, and `before` as it was before the operation.
  void read_tensor(const at::Tensor& now, const at::Tensor& before, size_t index,
                   const NonFiniteOrigin& reader, size_t visits, Operands& operands);

  /// Records the loss scale if the operation that ended scaled a loss; the last one counts.
  void note_scale(const Frame& frame, const at::Tensor& result);
  /// Announces the backward pass of `loss`.
  void begin_backward(const at::Tensor& loss);

  /// Fills in blame and cause. `frame` is null for a custom function's node.
  void judge(Event& event, const Operands& operands, const Finiteness& result, const Frame* frame) const;

  /// True if a non-finite operand was made by the kernel of an operation that this one is a part of. Then the
  /// outer operation is judged instead, by its own operands.
  bool reads_memory_of_caller(const Frame& frame) const;

 private:
  NonFiniteCause cause_of(NonFiniteOrigin& origin, const Finiteness& result, bool reduced,
                          const Frame& frame) const;

  const Modules& modules_;
  History& history_;
  const Underflows& underflows_;
  double loss_scale_ = 0;  ///< 0 if none was seen
  at::Tensor scaled_;
};

}  // namespace mantissa::nonfinite_internal
