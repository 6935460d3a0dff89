#include "cli/warnings.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <string>
#include <sys/mman.h>
#include <utility>

#include <c10/util/Exception.h>

#include "cli/errors.h"
#include "cli/terminal_text.h"
#include "mantissa/core/thread_warnings.h"

namespace mantissa::cli {
namespace {

/// The hashes of printed texts, in memory that child processes share: otherwise the run of every mode would
/// repeat them.
class Printed {
 public:
  Printed() {
    void* const memory =
        mmap(nullptr, kSlots * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
             /*fd=*/-1, /*offset=*/0);
    if (memory != MAP_FAILED) slots_ = new (memory) Slot[kSlots]{};
  }

  /// Returns true if `text` is new, and remembers it.
  bool add(const std::string& text) {
    const uint64_t hash = std::max<uint64_t>(std::hash<std::string>()(text), 1);
    for (size_t i = 0; slots_ && i < kSlots; ++i) {
      uint64_t there = 0;
      if (slots_[i].compare_exchange_strong(there, hash)) return true;
      if (there == hash) return false;
    }
    return true;  // printing it twice is better than never
  }

 private:
  using Slot = std::atomic<uint64_t>;
  static_assert(Slot::is_always_lock_free, "a lock would be each process's own");
  static constexpr size_t kSlots = 1024;
  Slot* slots_ = nullptr;
};

class PlainWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    std::string text = warning.msg();
    std::replace(text.begin(), text.end(), '\n', ' ');
    text = printable(std::move(text));  // a file name in the text must not control a terminal
    if (printed_.add(text)) print_to_stderr("mantissa: warning: " + text + "\n");
  }

 private:
  Printed printed_;
};

}  // namespace

void print_warnings_plainly() {
  static auto& handler = *new PlainWarnings;  // other threads may warn until the program's end
  c10::WarningUtils::set_warning_handler(&handler);
  set_thread_warning_handler(&handler);
}

}  // namespace mantissa::cli
