#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "mantissa/kernels/aten/choice.h"

/// How the kernels stand on libtorch's dispatcher: they are registered once in a process, are never taken out
/// again, and a flag decides at each call who computes.
namespace mantissa::registration {

/// The function that is registered in the place of `kStock`: it calls `kOurs` while `kOn` is set, and else
/// `kStock`, which is what libtorch would have called.
template <const std::atomic<bool>& kOn, auto kOurs, auto kStock>
struct Switched;

template <const std::atomic<bool>& kOn, typename Result, typename... Args, Result (*kOurs)(Args...),
          Result (*kStock)(Args...)>
struct Switched<kOn, kOurs, kStock> {
  static Result call(Args... args) {
    return kOn.load(std::memory_order_relaxed) ? kOurs(std::forward<Args>(args)...)
                                               : kStock(std::forward<Args>(args)...);
  }
};

/// The functions of overrides.h for the kernels that are registered. It is a table, because a process
/// may hold several copies of this library (a program's and a plug-in's), which share libtorch and nothing
/// else.
struct Switch {
  bool (*enable)();
  void (*enable_by_default)();
  void (*disable)();
  bool (*is_on)();
  /// Sets whether the calling thread's autocast casts weights in operations of their own; returns what was
  /// set before.
  bool (*separate_casts)(bool);
  /// Sets whether any thread's autocast multiplies by weights without casting them; returns what was set
  /// before.
  bool (*mix_products)(bool);
  // The functions of choice.h for the kernels that are registered.
  void (*pin)(const std::string&);
  std::vector<std::string> (*resume)(const std::string&);
  std::string (*choices)();
  std::vector<KernelChoice> (*choice_rows)();
};

/// The switch of the copy whose kernels are registered: the first that asked. Registers this copy's kernels,
/// switched off, if no copy has done so.
///
/// Threads: any may call, also while others are in libtorch's kernels; see registration.cpp.
/// Errors:  c10::Error if libtorch refuses a kernel, if another Mantissa is registered whose switch this one
///          cannot read, or if the shared object that holds this code cannot be kept loaded. Nothing is
///          registered then.
const Switch& in_charge();

}  // namespace mantissa::registration
