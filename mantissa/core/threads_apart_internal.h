#pragma once

#include <functional>
#include <sys/types.h>
#include <vector>

/// The parts of keep_threads_apart().
namespace mantissa::threads_apart {

struct RunningThread {
  pid_t id;  ///< as the kernel counts threads
  int cpu;   ///< on which it runs, or waits to run
};

/// The threads of this process that run or could run, the calling one aside, the oldest first. Empty where
/// there is no /proc.
std::vector<RunningThread> running_threads();

/// The processors on which the thread may run; empty if it has ended.
std::vector<int> allowed_cpus(pid_t thread);

struct Move {
  pid_t thread;
  int cpu;
  bool operator==(const Move&) const = default;
};

/// The moves after which no thread shares a processor with another although one of those that it may use has
/// none, or at least two fewer. Young threads move rather than old ones, since the oldest is the program's
/// own, which may start threads; and each to the next such processor after its own, so that several processes
/// do not all crowd the first.
std::vector<Move> moves(const std::vector<RunningThread>& threads,
                        const std::function<std::vector<int>(pid_t)>& allowed_cpus_of);

/// Moves a thread at once, and leaves its affinity as it was.
void carry_out(const Move& move);

}  // namespace mantissa::threads_apart
