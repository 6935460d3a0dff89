#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// Why an optimizer step changed nothing.
enum class SkipCause {
  kNone,                ///< it was not skipped
  kNonFiniteGradients,  ///< the scaler found inf or nan: the scale was too high, and has been lowered
  kNoGradients          ///< no loss was returned and no gradient was waiting
};

/// Returns a text for logs, such as "non-finite gradients".
std::string_view to_string(SkipCause cause);

/// What an optimizer step did. A skipped step is an event, not an error: parameters and optimizer state are
/// unchanged.
///
/// A fused optimizer skips an overflowed step on the device, and the host does not know it until it reads one
/// flag. The first call that needs the answer reads it.
///
/// Memory:  copies share one answer.
/// Sync:    skipped(), cause() and first_nonfinite_parameter() wait for the device once, unless is_known().
/// Threads: one at a time, for all copies of one result.
class StepResult {
 public:
  /// A step that was taken.
  StepResult() = default;
  /// A step that was skipped.
  explicit StepResult(SkipCause cause, std::string first_nonfinite_parameter = "");
  /// A step whose outcome only the device knows. `found_inf`: 0-dim, nonzero if the step was skipped.
  /// `first_nonfinite`: returns the name of the first parameter with a non-finite gradient; called at most
  /// once, when the flag is read.
  StepResult(at::Tensor found_inf, std::function<std::string()> first_nonfinite);

  bool skipped() const { return cause() != SkipCause::kNone; }
  SkipCause cause() const;
  /// For kNonFiniteGradients: the first parameter, in the optimizer's order, whose gradient is not finite. It
  /// is named as in its module if convert_module() has seen that, and else "group 0, parameter 3". Empty if
  /// the flag was read only after the gradients had been cleared.
  const std::string& first_nonfinite_parameter() const;
  /// Whether the host knows the answers already.
  bool is_known() const;
  /// Returns the flag of the step while is_known() is false, and an undefined tensor afterwards.
  at::Tensor found_inf() const;

 private:
  struct Pending;
  const Pending* read() const;

  SkipCause cause_ = SkipCause::kNone;
  std::string first_nonfinite_parameter_;
  std::shared_ptr<Pending> pending_;
};

/// Counts skipped steps without reading the flag of each step at once.
///
/// Sync:    count() reads the flags of all steps since its last call, in one go.
/// Threads: one at a time, also for the const functions: they sum up the flags of earlier steps.
class SkippedSteps {
 public:
  explicit SkippedSteps(int64_t count = 0) : count_(count) {}

  void add(const StepResult& step);
  int64_t count() const;
  /// Returns the count as a 0-dim float64 tensor on the device of the unread flags, for loggers.
  at::Tensor count_on_device() const;

 private:
  void sum_up() const;

  // count() moves what add() and count_on_device() have left on the device into these.
  mutable int64_t count_;
  mutable std::vector<at::Tensor> unread_;  ///< flags of steps
  mutable at::Tensor sum_;  ///< 0-dim float64: the sum of flags that are no longer kept one by one
};

}  // namespace mantissa
