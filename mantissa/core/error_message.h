#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace mantissa {

/// Returns an exception's message for a user; a libtorch exception's without the backtrace.
inline std::string message_of(const std::exception& error) {
  const auto* const ours = dynamic_cast<const c10::Error*>(&error);
  return ours ? ours->what_without_backtrace() : error.what();
}

inline std::string message_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return message_of(error);
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace mantissa
