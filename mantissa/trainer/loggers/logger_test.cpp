// Tests for every logger that writes files.
#include "mantissa/trainer/loggers/logger.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <gmock/gmock.h>
#include <limits>
#include <thread>

#include <torch/torch.h>

#include "mantissa/core/device.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/event_file.h"
#include "mantissa/io/file_size_limit_internal.h"
#include "mantissa/trainer/loggers/csv_logger.h"
#include "mantissa/trainer/loggers/json_lines_logger.h"
#include "mantissa/trainer/loggers/tensorboard_logger.h"

namespace mantissa::logger_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST(MetricValue, ReadsATensorOnTheCpuAtOnce) {
  at::Tensor loss = torch::full({1, 1}, 0.5, torch::requires_grad());
  const MetricValue value(loss);
  loss.mutable_data_ptr<float>()[0] = 7;
  EXPECT_EQ(value.read(), 0.5);
  EXPECT_EQ(MetricValue(torch::tensor(true)).read(), 1);
  EXPECT_EQ(MetricValue(torch::tensor(int64_t{1} << 40)).read(), 0x1p40);
  EXPECT_EQ(MetricValue(torch::tensor(0.1, torch::kBFloat16)).read(), 0.10009765625);
}

TEST(MetricValue, RefusesWhatIsNotOneRealNumber) {
  for (const at::Tensor& wrong : {at::Tensor(), torch::zeros({2}), torch::zeros({0}),
                                  torch::zeros({}, torch::kComplexFloat), torch::zeros({}, torch::kMeta)})
    EXPECT_THROW(MetricValue{wrong}, c10::ValueError);
}

TEST(MetricValue, ReadsATensorOnCudaWhereItIsWritten) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  // The value is queued behind work on a stream that the reading thread does not know.
  const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
  const c10::StreamGuard guard(cuda.getStreamFromGlobalPool(at::Device("cuda:0")));
  at::Tensor work = torch::ones({2048, 2048}, torch::kCUDA);
  for (int i = 0; i < 50; ++i) work = work.mm(work).div(2048);
  const MetricValue value(work.sum());
  double read = 0;
  std::thread([&] { read = value.read(); }).join();
  EXPECT_EQ(read, 2048.0 * 2048.0);
}

struct Kind {
  const char* name;
  std::shared_ptr<Logger> (*make)(const fs::path& folder, const BackgroundOptions& options);
  /// Counts the rows in its file.
  int64_t (*rows)(const std::string& content);
};

template <typename T>
std::shared_ptr<Logger> make(const fs::path& folder, const BackgroundOptions& options) {
  return std::make_shared<T>(folder, options);
}

const Kind kKinds[] = {
    {"csv", &make<CSVLogger>,
     [](const std::string& content) { return std::count(content.begin(), content.end(), '\n') - 1; }},
    {"json_lines", &make<JSONLinesLogger>,
     [](const std::string& content) { return std::count(content.begin(), content.end(), '\n'); }},
    {"tensorboard", &make<TensorBoardLogger>, [](const std::string& content) {
       return static_cast<int64_t>(parse_events(content).events.size()) - 1;
     }}};

class EveryLogger : public InFolder, public testing::WithParamInterface<Kind> {
 protected:
  static constexpr BackgroundOptions kNever{.flush_seconds = 3600};

  std::shared_ptr<Logger> make(const BackgroundOptions& options = {}) const {
    return GetParam().make(folder_, options);
  }
  /// The one file in which a logger keeps rows.
  fs::path file() const {
    for (const auto& entry : fs::directory_iterator(folder_))
      if (entry.path().filename() != "hparams.yaml") return entry.path();
    return {};
  }
  int64_t rows() const { return GetParam().rows(content_of(file())); }
};

TEST_P(EveryLogger, MakesItsFolderAndTellsOfIt) {
  folder_ /= "runs/1";
  const auto logger = make();
  EXPECT_EQ(logger->log_dir(), folder_);
  EXPECT_EQ(logger->name(), GetParam().name);
  EXPECT_FALSE(file().empty());
  EXPECT_THAT(error_of([&] { GetParam().make(file() / "below", {}); }),
              HasSubstr("cannot create the folder"));
  folder_ = folder_.parent_path().parent_path();
}

TEST_P(EveryLogger, SaveAndItsEndWriteAllRows) {
  auto logger = make(kNever);
  logger->log_metrics({{"loss", 0.5}}, 1);
  EXPECT_EQ(rows(), 0);
  logger->save();
  EXPECT_EQ(rows(), 1);
  logger->log_metrics({{"loss", 0.25}}, 2);
  logger.reset();
  EXPECT_EQ(rows(), 2);
}

TEST_P(EveryLogger, AnExceptionThatEndsTheRunCostsNoRow) {
  try {
    const auto logger = make(kNever);
    logger->log_metrics({{"loss", 0.5}}, 1);
    throw std::runtime_error("stop");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(rows(), 1);
  }
}

TEST_P(EveryLogger, SurvivesNanAndInf) {
  const auto logger = make();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  logger->log_metrics(
      {{"nan", std::nan("")}, {"-nan", -std::nan("")}, {"inf", kInf}, {"-inf", -kInf}, {"big", 1e300}}, 1);
  logger->save();
  EXPECT_EQ(rows(), 1);
}

TEST_P(EveryLogger, AFullDiskIsOneErrorAndLeavesWholeRows) {
  const auto logger = make(kNever);
  logger->log_metrics({{"loss", 0.5}}, 1);
  logger->save();
  {
    const FileSizeLimit limit(fs::file_size(file()) + 3);
    for (int step = 2; step < 10; ++step) logger->log_metrics({{"loss", 0.5}}, step);
    EXPECT_THAT(error_of([&] { logger->save(); }),
                HasSubstr(file().filename().string() + "': writing failed: File too large; raise the limit"));
    logger->log_metrics({{"loss", 0.5}}, 10);
  }
  EXPECT_NO_THROW(logger->finalize("success"));
  EXPECT_EQ(rows(), 1);
}

TEST_P(EveryLogger, ARemovedFolderIsOneErrorOfTheNextCall) {
  const auto logger = make({.flush_seconds = 0.001});
  logger->log_metrics({{"loss", 0.5}}, 1);
  logger->save();
  fs::remove_all(folder_);
  std::vector<std::string> errors;
  for (int step = 2; step < 200; ++step) {
    const std::string error = error_of([&] { logger->log_metrics({{"loss", 0.5}}, step); });
    if (error != "no error") errors.push_back(error);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_THAT(errors, testing::ElementsAre(HasSubstr("it was removed, or its folder was")));
  EXPECT_NO_THROW(logger->finalize("success"));
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_P(EveryLogger, SaveFindsThatTheFolderIsGone) {
  const auto logger = make(kNever);
  logger->log_metrics({{"loss", 0.5}}, 1);
  logger->save();
  fs::remove_all(folder_);
  EXPECT_THAT(error_of([&] { logger->save(); }), HasSubstr("it was removed, or its folder was"));
}

// A new column and hyperparameters replace files by their names.
TEST_P(EveryLogger, KeepsItsFolderWhenTheProgramGoesToAnother) {
  const fs::path before = fs::current_path();
  const std::shared_ptr<void> back(nullptr, [&](void*) { fs::current_path(before); });
  fs::current_path(folder_.parent_path());
  const auto logger = GetParam().make(folder_.filename(), {});
  logger->log_metrics({{"loss", 0.5}}, 1);
  logger->save();
  fs::current_path("/");
  EXPECT_TRUE(logger->log_dir().is_absolute());
  EXPECT_TRUE(fs::equivalent(logger->log_dir(), folder_));
  logger->log_metrics({{"loss", 0.5}, {"new", 1}}, 2);
  logger->save();
  EXPECT_EQ(rows(), 2);
  EXPECT_NO_THROW(logger->log_hyperparams({{"lr", 0.5}}));
}

TEST_P(EveryLogger, TwoRunsMayNotWriteOneFile) {
  if (std::string(GetParam().name) == "tensorboard") GTEST_SKIP() << "each has a file of its own";
  const auto first = make();
  EXPECT_THAT(error_of([&] { make(); }), HasSubstr("another run is writing it"));
}

TEST_P(EveryLogger, SigkillCostsAFlushIntervalAtMost) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  // The test runs again in a new process, which cannot know the name of this one's folder.
  fs::remove_all(folder_);
  folder_ = fs::temp_directory_path() / (std::string("mantissa-killed-") + GetParam().name);
  EXPECT_EXIT(
      {
        fs::remove_all(folder_);
        const auto logger = make({.flush_seconds = 0.02});
        for (int step = 1; step <= 100; ++step) logger->log_metrics({{"loss", 0.5}}, step);
        std::this_thread::sleep_for(std::chrono::seconds(1));
        std::raise(SIGKILL);
      },
      testing::KilledBySignal(SIGKILL), "");
  EXPECT_EQ(rows(), 100);
}

INSTANTIATE_TEST_SUITE_P(Loggers, EveryLogger, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

using Loggers = InFolder;

TEST_F(Loggers, SeveralShareAFolder) {
  std::vector<std::shared_ptr<Logger>> loggers;
  for (const Kind& kind : kKinds) loggers.push_back(kind.make(folder_, {}));
  for (int step = 0; step < 10; ++step)
    for (const auto& logger : loggers) logger->log_metrics({{"loss", 0.5}}, step);
  for (const auto& logger : loggers) logger->save();
  int64_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename();
    const Kind& kind = kKinds[name == "metrics.csv" ? 0 : name == "metrics.jsonl" ? 1 : 2];
    EXPECT_EQ(kind.rows(content_of(entry.path())), 10) << name;
    ++files;
  }
  EXPECT_EQ(files, 3);
}

}  // namespace
}  // namespace mantissa::logger_test
