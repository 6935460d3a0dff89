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

/// For users' logs: "non-finite gradients", ...
std::string_view to_string(SkipCause cause);

/// What an optimizer step did. A skipped step is an event, not an error: parameters and optimizer state are
/// as before.
///
/// A fused optimizer skips an overflowed step on the device, and the host does not know of it until it asks:
/// the first of the questions below reads one flag.
///
/// Memory:  copies share what they know.
/// Sync:    skipped(), cause() and first_nonfinite_parameter() wait for the device once, unless is_known().
/// Threads: one at a time, for all copies of one result.
class StepResult {
 public:
  /// A step that was taken.
  StepResult() = default;
  /// A step that was skipped.
  explicit StepResult(SkipCause cause, std::string first_nonfinite_parameter = "");
  /// A step of which the device knows whether it was taken. `found_inf`: 0-dim, nonzero if it was not.
  /// `first_nonfinite`: names the first parameter with a non-finite gradient; called at most once, when the flag
  /// is read.
  StepResult(at::Tensor found_inf, std::function<std::string()> first_nonfinite);

  bool skipped() const { return cause() != SkipCause::kNone; }
  SkipCause cause() const;
  /// Of kNonFiniteGradients: the first parameter, in the optimizer's order, whose gradient is not finite. Its
  /// name where convert_module() has seen its module, else "group 0, parameter 3". Empty if the flag was read
  /// only after the gradients had been cleared.
  const std::string& first_nonfinite_parameter() const;
  /// Whether the answers are known on the host.
  bool is_known() const;
  /// The flag of a step that is_known() is false of, else undefined.
  at::Tensor found_inf() const;

 private:
  struct Pending;
  const Pending* read() const;

  SkipCause cause_ = SkipCause::kNone;
  std::string first_nonfinite_parameter_;
  std::shared_ptr<Pending> pending_;
};

/// Counts skipped steps without asking each of them whether it was one.
///
/// Sync: count() reads the flags of all steps since it was last called, at once.
class SkippedSteps {
 public:
  explicit SkippedSteps(int64_t count = 0) : count_(count) {}

  void add(const StepResult& step);
  int64_t count() const;
  /// The count as a 0-dim float64 tensor, on the device of the flags that were not read: for loggers.
  at::Tensor count_on_device() const;

 private:
  void sum_up() const;

  // count() reads what count_on_device() and add() have left on the device.
  mutable int64_t count_;
  mutable std::vector<at::Tensor> unread_;  ///< flags of steps
  mutable at::Tensor sum_;  ///< 0-dim float64: the skips among flags that are no longer kept one by one
};

}  // namespace mantissa
