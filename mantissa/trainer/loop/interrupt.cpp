#include "mantissa/trainer/loop/interrupt.h"

#include <array>
#include <atomic>
#include <csignal>

namespace mantissa {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};

std::atomic<int> requested_signal{0};
std::atomic<bool> installed{false};
std::array<struct sigaction, kSignals.size()> previous;

void on_signal(int signal) { requested_signal.store(signal, std::memory_order_relaxed); }

}  // namespace

InterruptScope::InterruptScope() : owner_(!installed.exchange(true)) {
  if (!owner_) return;
  requested_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  // SA_RESETHAND: the first signal asks, the second kills. SA_RESTART: interrupted reads continue.
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &previous[i]);
    if (previous[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptScope::~InterruptScope() {
  if (!owner_) return;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous[i], nullptr);
  installed = false;
}

int InterruptScope::requested() {
  return installed.load(std::memory_order_relaxed) ? requested_signal.load(std::memory_order_relaxed) : 0;
}

}  // namespace mantissa
