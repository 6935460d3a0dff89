#pragma once

namespace mantissa {

/// While it lives, Ctrl-C (SIGINT), SIGTERM and a closed terminal (SIGHUP) ask for a clean end instead of
/// killing the process; the same signal a second time kills, whatever handler was there before. A signal that
/// was ignored, as nohup and a shell's background jobs have it, stays ignored. The end of the scope restores
/// the earlier handlers.
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
