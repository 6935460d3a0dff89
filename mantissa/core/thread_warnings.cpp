#include "mantissa/core/thread_warnings.h"

#include <atomic>

#include <c10/util/Exception.h>

namespace mantissa {
namespace {

std::atomic<c10::WarningHandler*>& chosen() {
  static std::atomic<c10::WarningHandler*> handler = nullptr;
  return handler;
}

}  // namespace

void set_thread_warning_handler(c10::WarningHandler* handler) { chosen() = handler; }

void use_thread_warning_handler() {
  if (c10::WarningHandler* const handler = chosen()) c10::WarningUtils::set_warning_handler(handler);
}

}  // namespace mantissa
