#pragma once

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include <c10/util/Exception.h>

namespace mantissa::cli {

/// The command line or the configuration is wrong. The exit status is 2; that of a failed run is 1.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A signal stopped the run, and its files are complete. The exit status is 128 + signal, as in shells.
struct Interrupted {
  int signal;
};

/// A requested check has found a problem. The exit status is 3.
struct CheckFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Returns the message for an exception that reports too little memory, for data or for threads. The message
/// contains the requested size and the Trainer's note on batch and device, where these are known. Returns ""
/// for any other exception.
std::string too_little_memory(const std::exception& error);

/// Returns what `work` returns. If `work` runs out of memory, throws an error whose message ends with the
/// text that `cure` returns.
template <typename Work, typename Cure>
auto with_memory_cure(const Cure& cure, const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    const std::string memory = too_little_memory(error);
    if (memory.empty()) throw;
    throw std::runtime_error(memory + cure());
  }
}

/// Returns the first line of `text` without control characters. A text that comes from a user's file may
/// contain anything.
std::string on_one_line(std::string text);

/// Writes to standard error and ignores failures, because training must not end when nobody reads the output
/// any more.
inline void print_to_stderr(const std::string& text) { std::fputs(text.c_str(), stderr); }

/// Runs code that only checks the user's input, and turns its c10::ValueError into a UsageError.
template <typename Check>
auto usage(const Check& check) {
  try {
    return check();
  } catch (const c10::ValueError& error) {
    throw UsageError(error.what_without_backtrace());
  }
}

}  // namespace mantissa::cli
