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

/// Why an operation made inf or nan.
enum class NonFiniteCause {
  kDtypeRange,    ///< the result is finite in float32, and too large for the dtype that was used
  kLossScale,     ///< finite without the loss scale: the scaled loss itself, or a gradient
  kOverflow,      ///< too large for float32 as well
  kUnderflow,     ///< 0 was left of a value too small for fp16 (6e-8), and divided by or taken the log of
  kDomain,        ///< no dtype helps: log of 0, division by 0, the root's derivative at 0
  kInfinities,    ///< infinities that were meant, as a mask's, met in a way that gives nan
  kConstant,      ///< an inf or nan that the program wrote reached the loss
  kParameter,     ///< a parameter or buffer was not finite before the batch
  kInput,         ///< a tensor that no operation has made was not finite: the batch
  kAccumulation,  ///< each batch's gradient is finite, their sum over the accumulation window is not
  kUnknown        ///< the operation could not be run again: random numbers, or no kernel for the wider dtype
};

/// For users' logs: "beyond the dtype's range", ...
std::string_view to_string(NonFiniteCause cause);

/// What one operand of the guilty operation held.
struct OperandFacts {
  std::string name;  ///< the parameter's or buffer's, or empty
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  int64_t non_finite = 0;           ///< values that are inf or nan
  double min_abs = 0, max_abs = 0;  ///< over the finite ones; both 0 if there are none
};

/// The operation where the first inf or nan that reached the loss or a gradient came into being.
struct NonFiniteOrigin {
  bool backward = false;       ///< in which pass
  std::string op;              ///< "aten::exp"; for a custom function's backward the name of its node
  bool by_autocast = false;    ///< `op` is the cast that autocast has put before `called_by`
  std::string called_by;       ///< the operation that the program called, where `op` is a part of it
  std::string forward_op;      ///< backward: the operation whose derivative it is, where known
  std::string module;          ///< path of the module that it belongs to, or of the last one before it
  bool inside_module = false;  ///< false: it has no parameter; it lies after `module`, before `next_module`
  std::string next_module;     ///< empty: none follows
  std::string tensor;          ///< "output 0", "input 1", "parameter 'blocks.0.fc.weight'"
  OperandFacts result;         ///< of that tensor
  std::vector<OperandFacts> inputs;       ///< floating-point operands, in order
  std::optional<bool> finite_in_float32;  ///< the operation on the same inputs; unset: it could not be run
  bool under_autocast = false;            ///< it was called in an autocast region
  std::string flushed_by;                 ///< kUnderflow: what left 0 of `flushed`, "aten::add after head"
  double flushed = 0;
  NonFiniteCause cause = NonFiniteCause::kUnknown;
  std::string cure;

  /// Two lines: what, where and out of which values; why and the cure.
  std::string to_string() const;
};

/// Runs a batch again with every operation observed, and names the one that made the first inf or nan to
/// reach the loss or a gradient of `module`. Unset: both are finite. Infinities that end before the loss, as
/// those of an attention mask do, are nobody's fault.
///
/// `forward_and_loss`: the batch's forward, with its autocast region, to a loss of one element, scaled as it
/// was; no backward. With `from`, the batch begins there. A scaler is known by how GradScaler::scale()
/// scales: the loss times a 0-dim float32 tensor. A number that the program multiplies by is none.
///
/// Afterwards gradients, buffers and generators are as they were before the call, also when the batch throws,
/// and so are parameters that the forward writes into. Call it before the optimizer steps on the bad
/// gradients.
/// Sync:    reads each operation's result; on the CPU about twice as long as the plain batch.
/// Threads: autograd's own are observed too, those that the forward starts are not; one trace at a time in
///          the process.
/// Errors:  c10::ValueError if the loss is undefined or has not one element; c10::Error while another trace
///          runs.
/// Example: trace_nonfinite_test.cpp, TraceNonFinite.NamesTheModuleWhoseProductOverflows
std::optional<NonFiniteOrigin> trace_nonfinite(torch::nn::Module& module,
                                               const std::function<at::Tensor()>& forward_and_loss);
std::optional<NonFiniteOrigin> trace_nonfinite(torch::nn::Module& module,
                                               const std::function<at::Tensor()>& forward_and_loss,
                                               const ReplayPoint& from);

/// One of the batches whose gradients are added up before a step.
struct WindowBatch {
  std::function<at::Tensor()> forward_and_loss;  ///< as for trace_nonfinite()
  const ReplayPoint* from = nullptr;             ///< null: the batch begins as things stand
};
struct WindowOrigin {
  size_t batch = 0;  ///< its place in the window
  NonFiniteOrigin origin;
};

/// The same for an accumulation window: the first of its batches that is to blame. If each of them is finite
/// and the sum of their gradients is not, the batch and the parameter where it ceases to be (cause
/// kAccumulation).
///
/// Memory: one more set of gradients.
/// Example: window_test.cpp, TraceNonFiniteWindow.FindsASumThatOverflowsThoughEveryTermIsFinite
std::optional<WindowOrigin> trace_nonfinite_window(torch::nn::Module& module,
                                                   const std::vector<WindowBatch>& batches);

}  // namespace mantissa
