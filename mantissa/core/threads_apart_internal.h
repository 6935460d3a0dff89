#pragma once

#include <functional>
#include <sys/types.h>
#include <vector>

/// The parts of keep_threads_apart().
namespace mantissa::threads_apart {

struct RunningThread {
  pid_t id;  ///< the kernel's thread id
  int cpu;   ///< the processor on which it runs or waits to run
};

/// Returns the threads of this process that run or could run, except the calling one, the oldest first. Empty
/// if there is no /proc.
std::vector<RunningThread> running_threads();

/// Returns the processors on which the thread may run; empty if it has ended.
std::vector<int> allowed_cpus(pid_t thread);

struct Move {
  pid_t thread;
  int cpu;
  bool operator==(const Move&) const = default;
};

/// Returns the moves after which no thread shares a processor while another processor that it may use has
/// none of these threads, or at least two fewer. Young threads move rather than old ones, because the oldest
/// is the program's own thread, which may start others. Each moves to the next such processor after its own,
/// so that several processes do not all crowd onto the first.
std::vector<Move> moves(const std::vector<RunningThread>& threads,
                        const std::function<std::vector<int>(pid_t)>& allowed_cpus_of);

/// Moves a thread at once and restores its affinity.
void carry_out(const Move& move);

}  // namespace mantissa::threads_apart
