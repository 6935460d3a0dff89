#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/trace/replay_point.h"

namespace torch::nn {
class Module;
}

namespace mantissa {

/// The reason why an operation produced inf or nan.
enum class NonFiniteCause {
  kDtypeRange,    ///< finite in float32, but too large for the dtype that was used
  kLossScale,     ///< finite without the loss scale; the scaled loss or a gradient is not
  kOverflow,      ///< too large even for float32
  kUnderflow,     ///< a value below fp16's range (6e-8) became 0, then a divisor or the argument of a log
  kDomain,        ///< undefined in every dtype: log of 0, division by 0, the derivative of sqrt at 0
  kInfinities,    ///< intended infinities, such as a mask's, were combined in a way that gives nan
  kConstant,      ///< an inf or nan that the program wrote reached the loss
  kParameter,     ///< a parameter or buffer was not finite before the batch
  kInput,         ///< a tensor that no operation made was not finite: the batch
  kAccumulation,  ///< each batch's gradient is finite, but their sum over the accumulation window is not
  kUnknown        ///< the operation could not be run again: it is random, or lacks a kernel for the dtype
};

/// Returns a text for users' logs: "beyond the dtype's range", ...
std::string_view to_string(NonFiniteCause cause);

/// What one operand of the faulty operation held.
struct OperandFacts {
  std::string name;  ///< name of the parameter or buffer, or empty
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  int64_t non_finite = 0;           ///< values that are inf or nan
  double min_abs = 0, max_abs = 0;  ///< over the finite values; both 0 if there are none
};

/// The operation that produced the first inf or nan that reached the loss or a gradient.
struct NonFiniteOrigin {
  bool backward = false;       ///< true if it happened in the backward pass
  std::string op;              ///< "aten::exp"; for the backward of a custom function, the name of its node
  bool by_autocast = false;    ///< `op` is the cast that autocast inserted before `called_by`
  std::string called_by;       ///< the operation that the program called, if `op` is a part of it
  std::string forward_op;      ///< in the backward pass: the operation whose derivative it is, if known
  std::string module;          ///< path of the module that it belongs to, or of the module before it
  bool inside_module = false;  ///< false if it has no parameter and lies after `module`, before `next_module`
  std::string next_module;     ///< empty if no module follows
  std::string tensor;          ///< "output 0", "input 1", "parameter 'blocks.0.fc.weight'"
  OperandFacts result;         ///< of that tensor
  std::vector<OperandFacts> inputs;       ///< floating-point operands, in order
  std::optional<bool> finite_in_float32;  ///< with the same inputs; unset if it could not be run
  bool under_autocast = false;            ///< it was called in an autocast region
  std::string flushed_by;                 ///< for kUnderflow: what flushed the value, "aten::add after head"
  double flushed = 0;
  NonFiniteCause cause = NonFiniteCause::kUnknown;
  std::string cure;

  /// Returns two lines. The first says what happened, where and from which values; the second says why, and
  /// the remedy.
  std::string to_string() const;
};

/// Runs a batch again with every operation observed. Returns the operation that produced the first inf or nan
/// to reach the loss or a gradient of `module`, or nothing if both are finite. Infinities that do not reach
/// the loss, such as those of an attention mask, are not reported.
///
/// `forward_and_loss` runs the batch's forward pass, with its autocast region, and returns a loss of one
/// element, scaled as before. It runs no backward pass. If `from` is given, the batch starts from that point.
/// A loss scale is recognized by the operation of GradScaler::scale(): the loss times a 0-dim float32 tensor.
/// A plain number as a factor is not a loss scale.
///
/// Afterwards gradients, buffers and generators are as before the call, even if the batch throws, and so are
/// parameters that the forward pass writes into. Call it before the optimizer steps with the non-finite
/// gradients.
///
/// Sync:    reads the result of each operation; on the CPU it takes about twice as long as the plain batch.
/// Threads: autograd's own threads are observed, too, but not those that the forward pass starts. Only one
///          trace can run at a time in a process.
/// Errors:  c10::ValueError if the loss is undefined or does not have exactly one element; c10::Error while
///          another trace runs.
/// Example: trace_nonfinite_test.cpp, TraceNonFinite.NamesTheModuleWhoseProductOverflows
std::optional<NonFiniteOrigin> trace_nonfinite(torch::nn::Module& module,
                                               const std::function<at::Tensor()>& forward_and_loss);
std::optional<NonFiniteOrigin> trace_nonfinite(torch::nn::Module& module,
                                               const std::function<at::Tensor()>& forward_and_loss,
                                               const ReplayPoint& from);

/// One of the batches whose gradients are accumulated before a step.
struct WindowBatch {
  std::function<at::Tensor()> forward_and_loss;  ///< as for trace_nonfinite()
  const ReplayPoint* from = nullptr;             ///< null: the batch starts from the current state
};
struct WindowOrigin {
  size_t batch = 0;  ///< its place in the window
  NonFiniteOrigin origin;
};

/// Traces an accumulation window; returns the first of its batches that is to blame. If each batch is finite
/// but the sum of their gradients is not, it returns the batch and the parameter at which the sum stops being
/// finite (cause kAccumulation).
///
/// Memory:  one more set of gradients.
/// Example: window_test.cpp, TraceNonFiniteWindow.FindsASumThatOverflowsThoughEveryTermIsFinite
std::optional<WindowOrigin> trace_nonfinite_window(torch::nn::Module& module,
                                                   const std::vector<WindowBatch>& batches);

}  // namespace mantissa
