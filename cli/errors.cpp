#include "cli/errors.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "cli/terminal_text.h"
#include "mantissa/core/out_of_memory.h"

namespace mantissa::cli {
namespace {

/// Returns the part of `text` after `before`; empty if `before` does not occur.
std::string_view behind(std::string_view text, std::string_view before) {
  const size_t at = text.find(before);
  return at == std::string_view::npos ? "" : text.substr(at + before.size());
}

/// Returns the size that an allocator was asked for, from its message: a number of bytes on the CPU, "2.00
/// GiB" on the GPU.
std::string asked_for(std::string_view text) {
  const std::string_view number = behind(text, "you tried to allocate ");
  uint64_t bytes = 0;
  std::from_chars(number.data(), number.data() + number.size(), bytes);
  if (bytes > 0) return human_bytes(bytes);
  const std::string_view amount = behind(text, "Tried to allocate ");
  return std::string(
      amount.substr(0, amount.find("B.") == std::string_view::npos ? 0 : amount.find("B.") + 1));
}

}  // namespace

std::string too_little_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return "there is too little memory";
  if (const auto* system = dynamic_cast<const std::system_error*>(&error)) {
    if (system->code() == std::errc::not_enough_memory) return "there is too little memory";
    // std::thread throws this, because its stack is memory, too.
    if (system->code() == std::errc::resource_unavailable_try_again)
      return "no more threads can be started: memory is short, or the limit on processes (ulimit -u) is "
             "reached";
  }
  const std::string_view text = error.what();
  // The type of oneDNN's error is private to libtorch, and its text is the same for every cause.
  if (text.starts_with("could not create a") || text.starts_with("could not execute a"))
    return "oneDNN " + std::string(text) + ", most likely for lack of memory";
  const auto* const ours = dynamic_cast<const c10::Error*>(&error);
  if (!ours || !is_out_of_memory(*ours)) return "";
  const bool by_cpu = text.find("DefaultCPUAllocator") != std::string_view::npos;
  const std::string asked = asked_for(text);
  return std::string("there is too little memory") + (by_cpu ? "" : " on the GPU") +
         (asked.empty() ? "" : ": another " + asked + " was requested") +
         (ours->context().empty() ? "" : "; " + ours->context().front());
}

std::string on_one_line(std::string text) {
  text.resize(std::min(text.size(), text.find('\n')));
  return printable(std::move(text));
}

}  // namespace mantissa::cli
