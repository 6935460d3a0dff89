#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace mantissa {

/// Returns the message of an exception as users should see it: without libtorch's backtrace.
inline std::string message_of(const std::exception& error) {
  const auto* const from_libtorch = dynamic_cast<const c10::Error*>(&error);
  return from_libtorch ? from_libtorch->what_without_backtrace() : error.what();
}

/// Returns the same for an exception_ptr, which must not be null, such as that of std::current_exception().
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
