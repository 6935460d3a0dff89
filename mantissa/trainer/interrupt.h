#pragma once

namespace mantissa {

/// While it lives, Ctrl-C (SIGINT) and SIGTERM ask for a clean end instead of killing the process; a second
/// one kills as before. Restores the earlier handlers at the end of the scope.
///
/// Threads: one at a time in a process; an inner one does nothing of its own.
/// Errors:  none; where a handler cannot be installed, signals act as before.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  /// The signal that asked for the end, 0 if none did. One relaxed load: cheap enough for every step.
  static int requested();

 private:
  bool owner_;
};

}  // namespace mantissa
