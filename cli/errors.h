#pragma once

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include <c10/util/Exception.h>

namespace mantissa::cli {

/// The words on the command line or in the configuration are wrong: exit status 2, where a failed run
/// gives 1.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The run was asked to stop by a signal and did, its files whole: exit status 128 + signal, as shells have
/// it.
struct Interrupted {
  int signal;
};

/// A check that was asked for found something: exit status 3.
struct CheckFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The message for an exception that reports too little memory, for data or for threads. It says how much was
/// asked for, and what the Trainer says of batch and device, where that is known. "" for any other exception.
std::string too_little_memory(const std::exception& error);

/// What `work` returns. Where it fails for lack of memory, the error ends with what `cure` returns.
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

/// A user's file may hold anything: on one line, without what would control a terminal.
std::string on_one_line(std::string text);

/// Writes to standard error. That nobody reads it any more must not end a training.
inline void tell_user(const std::string& text) { std::fputs(text.c_str(), stderr); }

/// Runs what only looks at the user's words: a value error there is a usage error.
template <typename Check>
auto usage(const Check& check) {
  try {
    return check();
  } catch (const c10::ValueError& error) {
    throw UsageError(error.what_without_backtrace());
  }
}

}  // namespace mantissa::cli
