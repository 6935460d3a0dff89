#include "mantissa/kernels/aten/overrides.h"

#include <atomic>

#include "mantissa/kernels/aten/registration_internal.h"

namespace mantissa {
namespace {

using registration::in_charge;

/// Registers the kernels, switched off, while the program is loaded, before other threads can be in the
/// middle of a call. Every program that can switch the kernels on links this file, and with it this object.
[[maybe_unused]] const bool is_registered_at_load = [] {
  try {
    in_charge();
    return true;
  } catch (const std::exception&) {
    return false;  // enable_cpu_kernels() tries again, and reports the error
  }
}();

}  // namespace

bool enable_cpu_kernels() { return in_charge().enable(); }

void disable_cpu_kernels() { in_charge().disable(); }

bool cpu_kernels_enabled() { return in_charge().is_on(); }

void enable_cpu_kernels_by_default() {
  static std::atomic<bool> is_decided = false;
  if (is_decided.load(std::memory_order_acquire)) return;
  in_charge().enable_by_default();
  is_decided.store(true, std::memory_order_release);
}

SeparateCasts::SeparateCasts() : before_(in_charge().separate_casts(true)) {}

SeparateCasts::~SeparateCasts() { in_charge().separate_casts(before_); }

}  // namespace mantissa
