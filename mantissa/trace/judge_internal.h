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
  bool reduced = false;  ///< one is of less than 32 bits
  std::vector<size_t> causes;
  std::vector<OperandFacts> facts;
};

/// Decides whether an operation is to blame for a result that is not finite, from what went into it.
class Judge {
 public:
  Judge(const Modules& modules, History& history, const Underflows& underflows)
      : modules_(modules), history_(history), underflows_(underflows) {}

  /// One that is not finite and that no operation has made becomes an event of its own. `reader`: pass and
  /// place.
  Operands read(const Frame& frame, const NonFiniteOrigin& reader);
  /// The same for argument `index` alone: as it is now, and as it was before.
  void read_tensor(const at::Tensor& now, const at::Tensor& before, size_t index,
                   const NonFiniteOrigin& reader, size_t visits, Operands& operands);

  /// An operation of the forward has ended: the last one that scaled a loss says by how much.
  void note_scale(const Frame& frame, const at::Tensor& result);
  /// The backward pass of `loss` is next.
  void begin_backward(const at::Tensor& loss);

  /// Fills in blame and cause. `frame`: null for a custom function's node.
  void judge(Event& event, const Operands& operands, const Finiteness& result, const Frame* frame) const;

  /// Whether an operand that is not finite was made by the kernel of an operation that this one is a part of:
  /// then that one is to be judged, and by its own operands.
  bool reads_callers_own(const Frame& frame) const;

 private:
  NonFiniteCause cause_of(NonFiniteOrigin& origin, const Finiteness& result, bool reduced,
                          const Frame& frame) const;

  const Modules& modules_;
  History& history_;
  const Underflows& underflows_;
  double loss_scale_ = 0;  ///< 0: none was seen
  at::Tensor scaled_;
};

}  // namespace mantissa::nonfinite_internal
