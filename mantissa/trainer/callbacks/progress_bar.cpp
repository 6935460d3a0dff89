#include "mantissa/trainer/callbacks/progress_bar.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace mantissa {
namespace {

constexpr int kBarWidth = 24;
constexpr std::chrono::milliseconds kRedrawEvery{100};

/// Cuts `line` to the terminal's width, so that a narrow terminal does not wrap and scroll. The limit is in
/// bytes, and allows for the bar's characters, which take three each.
std::string fit_to_terminal(const std::string& line, std::FILE* out) {
  winsize size{};
  if (ioctl(fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return line;
  return line.substr(0, size.ws_col + 2 * kBarWidth);
}

}  // namespace

ProgressBar::ProgressBar(std::FILE* out, Style style)
    : out_(out), terminal_(style == Style::kAuto ? isatty(fileno(out)) == 1 : style == Style::kTerminal) {}

void ProgressBar::on_fit_start(Trainer& trainer, const FitPlan& plan) {
  plan_ = plan;
  is_shown_ = trainer.is_global_zero();
}

void ProgressBar::on_train_epoch_start(Trainer& /*trainer*/, int64_t /*epoch*/) {
  batches_ = 0;
  skipped_ = SkippedSteps();
  epoch_start_ = Clock::now();
  last_draw_ = {};
}

void ProgressBar::on_train_batch_end(Trainer& /*trainer*/, const TrainBatch& batch) {
  ++batches_;
  if (batch.stepped) skipped_.add(batch.step);
  if (!terminal_) return;
  const auto now = Clock::now();
  if (now - last_draw_ < kRedrawEvery) return;
  last_draw_ = now;
  const int64_t total = std::max<int64_t>(plan_.batches_per_epoch, 1);
  const int filled = static_cast<int>(kBarWidth * std::min(batches_, total) / total);
  std::string bar;
  for (int i = 0; i < kBarWidth; ++i) bar += i < filled ? "━" : "─";
  const double elapsed = std::chrono::duration<double>(now - epoch_start_).count();
  std::string line = fmt::format("{} {} {}/{}  {:.1f} batches/s", epoch_label(batch.epoch), bar, batches_,
                                 total, static_cast<double>(batches_) / std::max(elapsed, 1e-9));
  if (batch.loss.defined()) {
    const double loss = batch.loss.item<double>();
    line += fmt::format("  loss {:.4g}", std::isnan(loss) ? std::abs(loss) : loss);
  }
  if (const int64_t skipped = skipped_.count(); skipped > 0) line += fmt::format("  skipped {}", skipped);
  clear_line();
  show(fit_to_terminal(line, out_));
  line_open_ = true;
}

void ProgressBar::on_epoch_end(Trainer& /*trainer*/, int64_t epoch, int64_t global_step,
                               const Metrics& metrics) {
  const double elapsed = std::chrono::duration<double>(Clock::now() - epoch_start_).count();
  std::string line = fmt::format("{}  step {}", epoch_label(epoch), global_step);
  for (const auto& [name, value] : metrics) line += "  " + name + " " + format_metric(value);
  if (const int64_t skipped = skipped_.count(); skipped > 0) line += fmt::format("  skipped {}", skipped);
  clear_line();
  show(fmt::format("{}  {:.1f} s\n", line, elapsed));
}

void ProgressBar::on_exception(Trainer& /*trainer*/, const std::exception_ptr& /*exception*/) {
  // The last line stays visible, and the error message gets its own.
  if (line_open_) show("\n");
  line_open_ = false;
}

std::string ProgressBar::epoch_label(int64_t epoch) const {
  return plan_.max_epochs > 0 ? fmt::format("epoch {}/{}", epoch + 1, plan_.max_epochs)
                              : fmt::format("epoch {}", epoch + 1);
}

void ProgressBar::clear_line() {
  if (line_open_) show("\r\033[2K");
  line_open_ = false;
}

/// A closed terminal, or a pipe without a reader, must not end the training: what cannot be written is lost.
void ProgressBar::show(const std::string& text) {
  if (!is_shown_) return;
  if (std::fputs(text.c_str(), out_) < 0 || std::fflush(out_) != 0) std::clearerr(out_);
}

}  // namespace mantissa
