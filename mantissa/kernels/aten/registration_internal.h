#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "mantissa/kernels/aten/choice_internal.h"

/// Registers the kernels on libtorch's dispatcher, once in a process. They are never removed; a flag decides
/// at each call whether our kernel or libtorch's computes.
namespace mantissa::registration {

/// The function that is registered in place of `kStock`: it calls `kOurs` while `kOn` is set, and otherwise
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

/// The functions of overrides.h for the registered kernels. They form a table because a process may hold
/// several copies of this library (a program's and a plug-in's), which share nothing but libtorch.
struct Switch {
  bool (*enable)();
  void (*enable_by_default)();
  void (*disable)();
  bool (*is_on)();
  /// Sets whether the calling thread's autocast casts weights in separate operations; returns the previous
  /// setting.
  bool (*separate_casts)(bool);
  /// Sets whether autocast multiplies by weights without casting them, in all threads; returns the previous
  /// setting.
  bool (*mix_products)(bool);
  // The functions of choice.h for the registered kernels.
  void (*pin)(const std::string&);
  std::vector<std::string> (*resume)(const std::string&);
  std::string (*choices)();
  std::vector<KernelChoice> (*choice_rows)();
  Kernel (*kernel_for_own_operator)(KernelFamily, kernels::Element);  ///< see choice_internal.h
};

/// Returns the switch of the copy whose kernels are registered, which is the first copy that called this.
/// Registers this copy's kernels, switched off, if no copy has registered any.
///
/// Threads: any may call, even while other threads are in libtorch's kernels; see registration.cpp.
/// Errors:  c10::Error if libtorch refuses a kernel, if the registered kernels belong to another Mantissa
///          whose switch this one cannot read, or if the shared object that holds this code cannot be kept
///          loaded. Nothing is registered then.
const Switch& in_charge();

}  // namespace mantissa::registration
