#include "mantissa/trainer/callbacks/progress_bar.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include <torch/torch.h>

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
  const std::string text = printed(ProgressBar::Style::kAuto);
  EXPECT_THAT(text, testing::MatchesRegex("epoch 1/3  step 2  val_accuracy 0.7500  skipped 1  [0-9.]+ s\n"));
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

}  // namespace
}  // namespace mantissa::progress_bar_test
