#pragma once

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include <c10/util/Exception.h>

namespace mantissa::cli {

/// The command line or the configuration is wrong: exit status 2, whereas a failed run exits with 1.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A signal stopped the run, and its files are complete: exit status 128 + signal, as in shells.
struct Interrupted {
  int signal;
};

/// A requested check has found something: exit status 3.
struct CheckFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Returns the message for an exception that reports a lack of memory, for data or for threads. It has the
/// requested size, and the Trainer's note on batch and device, where these are known. Returns "" for any
/// other exception.
std::string too_little_memory(const std::exception& error);

/// Returns what `work` returns. If `work` fails for lack of memory, the text of `cure` is appended to the
/// error.
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

/// Returns `text` on one line and without control characters, because a user's file may hold anything.
std::string on_one_line(std::string text);

/// Writes to standard error. If nobody reads it any more, training must not end.
inline void print_to_stderr(const std::string& text) { std::fputs(text.c_str(), stderr); }

/// Runs code that only checks the user's input: a value error there is a usage error.
template <typename Check>
auto usage(const Check& check) {
  try {
    return check();
  } catch (const c10::ValueError& error) {
    throw UsageError(error.what_without_backtrace());
  }
}

}  // namespace mantissa::cli
