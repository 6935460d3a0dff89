#include "cli/child_process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/errors.h"
#include "mantissa/core/error_message.h"
#include "mantissa/trainer/loop/interrupt.h"

namespace mantissa::cli {
namespace {

/// Returns a child's answer in the form in which it passes through the pipe.
Json answer_of(const std::function<Json()>& run) {
  try {
    return {{"result", run()}};
  } catch (const Interrupted&) {
    return Json::object();
  } catch (const UsageError& error) {
    return {{"error", error.what()}, {"usage", true}};
  } catch (const std::exception& error) {
    return {{"error", message_of(error)}};
  }
}

[[noreturn]] void run_child(pid_t parent, int pipe_end, const std::function<Json()>& run) {
  // The child has its own process group, so a terminal's Ctrl-C reaches it only once, from the parent. A
  // second Ctrl-C kills the parent, and with it the child.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  bool sent = false;
  try {
    const std::string text = dump(answer_of(run));
    size_t done = 0;
    for (ssize_t n = 0; done < text.size(); done += static_cast<size_t>(n)) {
      n = write(pipe_end, text.data() + done, text.size() - done);
      if (n < 0 && errno != EINTR) break;
      n = std::max<ssize_t>(n, 0);
    }
    sent = done == text.size();
  } catch (...) {
    sent = false;
  }
  _exit(sent ? 0 : 1);
}

/// Reads the pipe until the child ends. Passes on a signal that asks for the end.
std::string read_answer(pid_t child, int pipe_end) {
  constexpr int kMilliseconds = 200;  // a signal that arrives just before poll() does not end it
  std::string text;
  std::array<char, 4096> buffer{};
  for (bool passed_on = false;;) {
    const int signal = InterruptScope::requested();
    if (signal != 0 && !passed_on) {
      kill(child, signal);
      passed_on = true;
    }
    pollfd ready{pipe_end, POLLIN, 0};
    if (poll(&ready, 1, kMilliseconds) <= 0) continue;
    const ssize_t n = read(pipe_end, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(n));
  }
}

}  // namespace

ChildOutcome run_in_child(const std::function<Json()>& run) {
  std::array<int, 2> ends{};
  TORCH_CHECK(pipe(ends.data()) == 0,
              "cannot make a pipe to a child process; are there too many open files?");
  const pid_t parent = getpid(), child = fork();
  TORCH_CHECK(child >= 0, "cannot start a child process; is there too little memory?");
  if (child == 0) {
    close(ends[0]);
    run_child(parent, ends[1], run);
  }
  close(ends[1]);
  const std::string text = read_answer(child, ends[0]);
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    if (signal == InterruptScope::requested()) return {};  // asked to stop before it could end cleanly
    return {.result = {},
            .error = fmt::format("its process was ended by signal {} ({}); is there enough memory?", signal,
                                 strsignal(signal))};
  }
  const Json answer = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (answer.is_discarded())
    return {.result = {}, .error = "its process ended without a result; is there enough memory?"};
  return {answer.value("result", Json()), answer.value("error", Json()), answer.value("usage", false)};
}

}  // namespace mantissa::cli
