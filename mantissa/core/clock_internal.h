#pragma once

#include <chrono>
#include <ctime>

namespace mantissa {

/// Returns the time on `clock`; for CLOCK_THREAD_CPUTIME_ID, the processor time that the calling thread has
/// used.
inline std::chrono::nanoseconds time_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

inline double seconds_of(clockid_t clock) { return std::chrono::duration<double>(time_of(clock)).count(); }

}  // namespace mantissa
