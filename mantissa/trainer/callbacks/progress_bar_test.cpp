#include "mantissa/trainer/callbacks/progress_bar.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <sys/ioctl.h>
#include <unistd.h>

#include <torch/torch.h>

#include "mantissa/trainer/strategy.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::progress_bar_test {
namespace {

using testing::HasSubstr;
using testing::Not;

/// Returns what a bar prints in two batches and at the end of an epoch.
std::string printed(ProgressBar::Style style) {
  std::FILE* out = std::tmpfile();
  Trainer trainer({.device = "cpu"});
  ProgressBar bar(out, style);
  bar.on_fit_start(trainer, {.batches_per_epoch = 2, .max_epochs = 3, .max_steps = -1});
  bar.on_train_epoch_start(trainer, 0);
  bar.on_train_batch_end(trainer, {.batch_index = 0, .loss = torch::tensor(0.5F), .stepped = true});
  bar.on_train_batch_end(
      trainer,
      {.batch_index = 1, .loss = at::Tensor(), .stepped = true, .step = StepResult(SkipCause::kNoGradients)});
  bar.on_epoch_end(trainer, 0, 2, {{"val_accuracy", 0.75}});
  bar.on_exception(trainer, nullptr);
  std::string text(static_cast<size_t>(std::ftell(out)), '\0');
  std::rewind(out);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), out), text.size());
  std::fclose(out);
  return text;
}

TEST(ProgressBar, WritesOnePlainLineAnEpochIntoAPipe) {
  const auto start = std::chrono::steady_clock::now();
  const std::string text = printed(ProgressBar::Style::kAuto);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const std::string line = "epoch 1/3  step 2  val_accuracy 0.7500  skipped 1  ";
  ASSERT_THAT(text, testing::MatchesRegex(line + "[0-9.]+ s\n"));
  EXPECT_LE(std::stod(text.substr(line.size())), elapsed.count() + 0.05) << "counted from the epoch's start";
}

TEST(ProgressBar, RedrawsOneLineOnATerminal) {
  const std::string text = printed(ProgressBar::Style::kTerminal);
  EXPECT_THAT(text, HasSubstr("1/2"));
  EXPECT_THAT(text, HasSubstr("loss 0.5"));
  EXPECT_THAT(text, HasSubstr("\r\033[2K"));
  EXPECT_THAT(text, testing::EndsWith(" s\n"));
}

TEST(ProgressBar, IsNotRedrawnForEveryBatch) {
  std::FILE* out = std::tmpfile();
  Trainer trainer({.device = "cpu"});
  ProgressBar bar(out, ProgressBar::Style::kTerminal);
  bar.on_fit_start(trainer, {.batches_per_epoch = 1000, .max_epochs = 1, .max_steps = -1});
  bar.on_train_epoch_start(trainer, 0);
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < 1000; ++i)
    bar.on_train_batch_end(trainer, {.batch_index = i, .loss = {}, .stepped = true});
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::string text(static_cast<size_t>(std::ftell(out)), '\0');
  std::rewind(out);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), out), text.size());
  std::fclose(out);
  int drawn = 0;
  for (size_t at = text.find("/1000"); at != std::string::npos; at = text.find("/1000", at + 1)) ++drawn;
  EXPECT_GE(drawn, 1);
  EXPECT_LE(drawn, 1 + elapsed.count() / 0.1) << "ten times a second, on a slow machine too";
}

/// A terminal of the given width.
class Terminal {
 public:
  explicit Terminal(uint16_t columns) {
    EXPECT_TRUE(grantpt(master_) == 0 && unlockpt(master_) == 0);
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    out = std::fopen(ptsname(master_), "w");
    EXPECT_EQ(ioctl(fileno(out), TIOCSWINSZ, &size), 0);
  }
  ~Terminal() {
    std::fclose(out);
    close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  std::string text() const {
    std::string read_so_far(4096, '\0');
    read_so_far.resize(static_cast<size_t>(read(master_, read_so_far.data(), read_so_far.size())));
    return read_so_far;
  }
  std::FILE* out = nullptr;

 private:
  int master_ = posix_openpt(O_RDWR | O_NOCTTY);
};

TEST(ProgressBar, FitsIntoItsTerminal) {
  const auto line = [](uint16_t columns) {
    const Terminal terminal(columns);
    Trainer trainer({.device = "cpu"});
    ProgressBar bar(terminal.out, ProgressBar::Style::kAuto);
    bar.on_fit_start(trainer, {.batches_per_epoch = 2, .max_epochs = 3, .max_steps = -1});
    bar.on_train_epoch_start(trainer, 0);
    bar.on_train_batch_end(trainer, {.loss = torch::tensor(0.5F), .stepped = true});
    return terminal.text();
  };
  EXPECT_THAT(line(200), testing::EndsWith("loss 0.5"));
  // A character of the bar has 3 bytes.
  EXPECT_EQ(line(40).size(), 40U + 2 * 24);
  EXPECT_EQ(line(1).size(), 1U + 2 * 24);
  EXPECT_THAT(line(0), testing::EndsWith("loss 0.5")) << "a terminal without a width";
}

TEST(ProgressBar, EachEpochBeginsAtNothing) {
  std::FILE* out = std::tmpfile();
  Trainer trainer({.device = "cpu"});
  ProgressBar bar(out, ProgressBar::Style::kTerminal);
  bar.on_fit_start(trainer, {.batches_per_epoch = 2, .max_epochs = 2, .max_steps = -1});
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    bar.on_train_epoch_start(trainer, epoch);
    const StepResult step = epoch == 0 ? StepResult(SkipCause::kNoGradients) : StepResult();
    bar.on_train_batch_end(trainer, {.epoch = epoch, .loss = {}, .stepped = true, .step = step});
    bar.on_epoch_end(trainer, epoch, epoch + 1, {});
  }
  std::string text(static_cast<size_t>(std::ftell(out)), '\0');
  std::rewind(out);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), out), text.size());
  std::fclose(out);
  EXPECT_THAT(text, HasSubstr("epoch 1/2 ━━━━━━━━━━━━──────────── 1/2 "));
  EXPECT_THAT(text, HasSubstr("epoch 2/2 ━━━━━━━━━━━━──────────── 1/2 "));
  EXPECT_THAT(text, HasSubstr("epoch 1/2  step 1  skipped 1 "));
  EXPECT_THAT(text.substr(text.find("epoch 2/2")), Not(HasSubstr("skipped")));
}

TEST(ProgressBar, OnlyTheFirstProcessShowsIt) {
  struct Second final : Strategy {
    int64_t rank() const override { return 1; }
  };
  std::FILE* out = std::tmpfile();
  Trainer trainer({.device = "cpu", .strategy = std::make_shared<Second>()});
  ProgressBar bar(out, ProgressBar::Style::kTerminal);
  bar.on_fit_start(trainer, {.batches_per_epoch = 2, .max_epochs = 1, .max_steps = -1});
  bar.on_train_epoch_start(trainer, 0);
  bar.on_train_batch_end(trainer, {.loss = {}, .stepped = true});
  bar.on_epoch_end(trainer, 0, 1, {});
  EXPECT_EQ(std::ftell(out), 0);
  std::fclose(out);
}

}  // namespace
}  // namespace mantissa::progress_bar_test
