#include "cli/errors.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "cli/text.h"

namespace mantissa::cli {
namespace {

/// The number behind `before` in `text`, or 0.
uint64_t number_behind(std::string_view text, std::string_view before) {
  const size_t at = text.find(before);
  uint64_t number = 0;
  if (at != std::string_view::npos)
    std::from_chars(text.data() + at + before.size(), text.data() + text.size(), number);
  return number;
}

}  // namespace

std::string too_little_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return "there is too little memory";
  if (const auto* system = dynamic_cast<const std::system_error*>(&error)) {
    if (system->code() == std::errc::not_enough_memory) return "there is too little memory";
    // Of std::thread, whose stack is memory, too.
    if (system->code() == std::errc::resource_unavailable_try_again)
      return "no more threads can be started, for lack of memory or by the limit on processes (ulimit -u)";
  }
  const std::string_view text = error.what();
  // oneDNN's error is of a type that libtorch keeps to itself, and has one text for every cause.
  if (text.starts_with("could not create a") || text.starts_with("could not execute a"))
    return "oneDNN " + std::string(text) + ", most likely for lack of memory";
  if (!dynamic_cast<const c10::Error*>(&error)) return "";
  // The CPU's allocator throws no type of its own.
  const bool by_cpu = text.find("DefaultCPUAllocator") != std::string_view::npos;
  if (!by_cpu && !dynamic_cast<const c10::OutOfMemoryError*>(&error)) return "";
  const uint64_t bytes = number_behind(text, "you tried to allocate ");
  return std::string("there is too little memory") + (by_cpu ? "" : " on the GPU") +
         (bytes > 0 ? ": another " + human_bytes(bytes) + " were asked for" : "");
}

std::string on_one_line(std::string text) {
  text.resize(std::min(text.size(), text.find('\n')));
  return printable(std::move(text));
}

}  // namespace mantissa::cli
