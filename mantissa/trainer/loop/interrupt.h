#pragma once

namespace mantissa {

/// During its lifetime, Ctrl-C (SIGINT), SIGTERM and a closed terminal (SIGHUP) ask for a clean end instead
/// of killing the process. The same signal a second time kills, whatever handler was there before. An ignored
/// signal stays ignored, as with nohup and a shell's background jobs. The end of the scope restores the
/// earlier handlers.
///
/// Threads: one scope is active at a time in a process; an inner one has no effect.
/// Errors:  none; if a handler cannot be installed, signals act as before.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  /// The signal that asked for the end, else 0. Costs one relaxed load: cheap enough for every step.
  static int requested();

 private:
  bool owner_;
};

}  // namespace mantissa
