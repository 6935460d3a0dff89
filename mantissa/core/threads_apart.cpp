#include "mantissa/core/threads_apart.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <sys/syscall.h>
#include <system_error>
#include <thread>
#include <unistd.h>

#include <c10/util/Exception.h>

#include "mantissa/core/clock_internal.h"
#include "mantissa/core/environment_flag_internal.h"
#include "mantissa/core/keep_loaded_internal.h"
#include "mantissa/core/signals_blocked_internal.h"
#include "mantissa/core/threads_apart_internal.h"

namespace mantissa {
namespace threads_apart {
namespace {

/// A set of processors, large enough for the largest machines, because the kernel refuses a set that is
/// smaller than its own.
struct Affinity {
  static constexpr int kCpus = 8192;
  std::array<cpu_set_t, kCpus / CPU_SETSIZE> words{};

  bool read(pid_t thread) { return sched_getaffinity(thread, sizeof words, words.data()) == 0; }
  [[nodiscard]] bool write(pid_t thread) const {
    return sched_setaffinity(thread, sizeof words, words.data()) == 0;
  }
};

/// Returns the processor of a thread that runs or is ready to run; -1 for a thread that waits. `stat` is the
/// text of the thread's /proc/.../stat.
int processor_of(const char* stat) {
  constexpr int kStateField = 3, kProcessorField = 39;
  // The second field is a name in parentheses, which may itself contain parentheses and spaces.
  const char* at = std::strrchr(stat, ')');
  if (at == nullptr || std::strlen(at) < 3 || at[2] != 'R') return -1;
  at += 2;
  for (int field = kStateField; field < kProcessorField; ++field) {
    at = std::strchr(at, ' ');
    if (at == nullptr) return -1;
    ++at;
  }
  return static_cast<int>(std::strtol(at, nullptr, 10));
}

/// Returns the beginning of a file. It is empty if the file cannot be read, for example because the thread
/// has just ended.
std::array<char, 1024> contents(const std::string& path) {
  std::array<char, 1024> text{};
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  const ssize_t size = ::read(file, text.data(), text.size() - 1);
  ::close(file);
  text[static_cast<size_t>(std::max<ssize_t>(size, 0))] = '\0';
  return text;
}

}  // namespace

std::vector<RunningThread> running_threads() {
  const std::string folder = "/proc/self/task/";
  const auto close = [](DIR* opened) { ::closedir(opened); };
  const std::unique_ptr<DIR, decltype(close)> threads(::opendir(folder.c_str()), close);
  if (!threads) return {};
  const auto self = static_cast<pid_t>(::syscall(SYS_gettid));
  std::vector<RunningThread> running;
  while (const dirent* const entry = ::readdir(threads.get())) {
    const auto id = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (id <= 0 || id == self) continue;
    const int cpu = processor_of(contents(folder + entry->d_name + "/stat").data());
    if (cpu >= 0) running.push_back({id, cpu});
  }
  return running;
}

std::vector<int> allowed_cpus(pid_t thread) {
  Affinity affinity;
  std::vector<int> cpus;
  if (!affinity.read(thread)) return cpus;
  for (int cpu = 0; cpu < Affinity::kCpus; ++cpu)
    if (CPU_ISSET_S(cpu, sizeof affinity.words, affinity.words.data())) cpus.push_back(cpu);
  return cpus;
}

std::vector<Move> moves(const std::vector<RunningThread>& threads,
                        const std::function<std::vector<int>(pid_t)>& allowed_cpus_of) {
  std::map<int, int> count;  // the number of these threads on each processor
  for (const RunningThread& each : threads) ++count[each.cpu];
  std::vector<Move> moves;
  for (auto thread = threads.rbegin(); thread != threads.rend(); ++thread) {
    if (count[thread->cpu] < 2) continue;
    std::vector<int> cpus = allowed_cpus_of(thread->id);
    if (cpus.empty()) continue;
    std::rotate(cpus.begin(), std::upper_bound(cpus.begin(), cpus.end(), thread->cpu), cpus.end());
    const int least =
        *std::min_element(cpus.begin(), cpus.end(), [&](int a, int b) { return count[a] < count[b]; });
    if (count[least] + 2 > count[thread->cpu]) continue;
    --count[thread->cpu];
    ++count[least];
    moves.push_back({thread->id, least});
  }
  return moves;
}

void carry_out(const Move& move) {
  Affinity before, target;
  if (!before.read(move.thread)) return;
  CPU_SET_S(move.cpu, sizeof target.words, target.words.data());
  // The kernel moves a thread away from a processor that its affinity forbids. It does not move the thread
  // back when the old affinity is restored.
  if (target.write(move.thread)) static_cast<void>(before.write(move.thread));
}

namespace {

using std::chrono::milliseconds;

/// Computes the time until the watching thread looks again at the running threads. Beside a busy process, a
/// training step with a look every 5 ms took as long as with bound threads. With a look every 20 ms it took a
/// tenth longer. It also took a tenth longer with a look every 2 ms, because each look takes a processor from
/// a thread.
class Period {
 public:
  /// `look` is the processor time of the last look. All looks together may use a hundredth of one processor.
  milliseconds after(std::chrono::nanoseconds look, bool are_several, bool has_moved) {
    soon_ = has_moved ? kLooksAfterMove : std::max(soon_ - 1, 0);
    awake_ = are_several ? kLooksAfterActivity : std::max(awake_ - 1, 0);
    const milliseconds rest(soon_ > 0 ? 5 : awake_ > 0 ? 20 : 100);
    return std::max(rest, std::chrono::duration_cast<milliseconds>(100 * look));
  }

 private:
  /// The number of looks with the short period after a move. They last a second, because the other load
  /// usually continues for a while.
  static constexpr int kLooksAfterMove = 200;
  /// The number of looks with the middle period after several threads ran. They last a second, because the
  /// threads of a team sleep between their tasks.
  static constexpr int kLooksAfterActivity = 50;
  int soon_ = 0, awake_ = 0;
};

[[noreturn]] void watch_threads() {
  pthread_setname_np(pthread_self(), "threads-apart");
  Period period;
  while (true) {
    const std::chrono::nanoseconds begin = time_of(CLOCK_THREAD_CPUTIME_ID);
    bool are_several = false, has_moved = false;
    try {
      const std::vector<RunningThread> threads = running_threads();
      const std::vector<Move> due = moves(threads, allowed_cpus);
      std::for_each(due.begin(), due.end(), carry_out);
      are_several = threads.size() > 1;
      has_moved = !due.empty();
    } catch (const std::bad_alloc&) {
      // This look is left out. The rest of the program will report that there is too little memory.
    }
    std::this_thread::sleep_for(
        period.after(time_of(CLOCK_THREAD_CPUTIME_ID) - begin, are_several, has_moved));
  }
}

/// Starts the thread, which receives none of the program's signals.
void start() {
  keep_loaded(reinterpret_cast<const void*>(&start), "keep_threads_apart");
  const SignalsBlocked none;
  try {
    std::thread(watch_threads).detach();
  } catch (const std::system_error& error) {
    TORCH_WARN("keep_threads_apart: no thread can be started (", error.what(),
               "), so on a busy machine this program may be slow; raise the limit (ulimit -u)");
  }
}

}  // namespace
}  // namespace threads_apart

bool threads_apart_by_environment() {
  return environment_flag("MANTISSA_KEEP_THREADS_APART", "threads stay where the kernel puts them");
}

void keep_threads_apart() {
  static std::once_flag once;
  if (threads_apart_by_environment()) std::call_once(once, threads_apart::start);
}

}  // namespace mantissa
