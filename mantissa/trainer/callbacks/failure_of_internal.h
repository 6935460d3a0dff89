#pragma once

#include <exception>
#include <functional>
#include <string>

#include "mantissa/core/error_message.h"

namespace mantissa {

/// Returns the message of what `write` throws; "" if it does not throw.
inline std::string failure_of(const std::function<void()>& write) {
  try {
    write();
  } catch (...) {
    return message_of(std::current_exception());
  }
  return "";
}

}  // namespace mantissa
