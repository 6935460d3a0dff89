#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "mantissa/kernels/aten/calibration_internal.h"
#include "mantissa/kernels/aten/choice.h"
#include "mantissa/kernels/aten/choice_cache_internal.h"
#include "mantissa/kernels/aten/choice_internal.h"

namespace mantissa::choice_cache_test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

/// Sets MANTISSA_CACHE_DIR to an empty folder.
class ChoiceCacheFile : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* const value = std::getenv("MANTISSA_CACHE_DIR")) before_ = value;
    folder_ = fs::temp_directory_path() / ("mantissa_choice_" + std::to_string(getpid()));
    setenv("MANTISSA_CACHE_DIR", (folder_ / "of" / "mine").c_str(), 1);
  }
  void TearDown() override {
    fs::remove_all(folder_);
    if (before_) {
      setenv("MANTISSA_CACHE_DIR", before_->c_str(), 1);
    } else {
      unsetenv("MANTISSA_CACHE_DIR");
    }
  }

  fs::path file() const {
    for (const auto& entry : fs::directory_iterator(folder_ / "of" / "mine")) return entry.path();
    return {};
  }
  void write(const std::string& text) const { std::ofstream(file(), std::ios::trunc) << text; }
  std::string text() const {
    std::ifstream stream(file());
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  /// Makes all times in the file older by an hour.
  void an_hour_passes() const {
    std::istringstream lines(text());
    std::string line, older;
    std::getline(lines, line);
    for (older = line + '\n'; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string key, timings;
      int64_t moments = 0, last = 0;
      words >> key >> moments >> last;
      std::getline(words, timings);
      older += c10::str(key, ' ', moments, ' ', last - 3600, timings, '\n');
    }
    write(older);
  }

  const std::vector<KernelTiming> timings_ = {{"avx2", 0.1 + 0.2},
                                              {"libtorch", std::numeric_limits<double>::infinity()}};

 private:
  fs::path folder_;
  std::optional<std::string> before_;
};

/// A process that has spent its calibration budget.
class ChoiceWithoutTime : public ChoiceCacheFile {
 protected:
  void SetUp() override {
    ChoiceCacheFile::SetUp();
    forget_cpu_kernel_choices();
    set_calibration_budget(0);
  }
  void TearDown() override {
    forget_cpu_kernel_choices();
    ChoiceCacheFile::TearDown();
    pin_cpu_kernels(tier_name(cpu_tier()));  // as the program's other tests
  }
  static constexpr kernels::Element kBf16 = kernels::Element::kBFloat16;
};

TEST_F(ChoiceWithoutTime, TakesTheNearestFamilysKernel) {
  // According to the cache of an earlier process, libtorch's kernel was fastest for products of one kind,
  // ours for those of another.
  const auto row = [](KernelFamily family, double libtorchs) {
    std::vector<KernelTiming> timings;
    for (const CpuTier tier : {CpuTier::kAvx512Bf16, CpuTier::kAvx512, CpuTier::kAvx2})
      if (cpu_features().includes(features_of(tier)) &&
          (tier != CpuTier::kAvx512Bf16 || family == KernelFamily::kProduct))
        timings.push_back({tier_name(tier), 1});
    if (timings.empty()) timings.push_back({"generic", 1});
    timings.push_back({"libtorch", libtorchs});
    return timings;
  };
  ChoiceCache cache = ChoiceCache::read();
  cache.keep({{"bf16.product", row(KernelFamily::kProduct, 0.5)}, {"bf16.dot", row(KernelFamily::kDot, 2)}});
  const auto is_ours = [](KernelFamily family) { return kernel_for(family, kBf16).tier.has_value(); };
  EXPECT_FALSE(is_ours(KernelFamily::kSmallProduct)) << "as product";
  EXPECT_TRUE(is_ours(KernelFamily::kBatchedProduct)) << "as dot, which is nearer";
  EXPECT_TRUE(is_ours(KernelFamily::kGelu)) << "of another kind: by the CPU's flags";
  EXPECT_THAT(cpu_kernel_choices(), HasSubstr("bf16.small_product=libtorch"));
}

TEST_F(ChoiceWithoutTime, ALaterProcessMeasures) {
  kernel_for(KernelFamily::kGelu, kBf16);
  EXPECT_TRUE(ChoiceCache::read().timings("bf16.gelu").empty()) << "what was not measured is not kept";
  forget_cpu_kernel_choices();
  kernel_for(KernelFamily::kGelu, kBf16);
  EXPECT_FALSE(ChoiceCache::read().timings("bf16.gelu").empty());
}

TEST_F(ChoiceWithoutTime, WhatIsBegunIsFinished) {
  set_calibration_budget(1e-9);
  kernel_for(KernelFamily::kGeluBackward, kBf16);
  EXPECT_FALSE(ChoiceCache::read().timings("bf16.gelu_backward").empty());
  EXPECT_TRUE(ChoiceCache::read().timings("bf16.gelu").empty()) << "of the same group, but the time is spent";
}

TEST_F(ChoiceCacheFile, GivesBackWhatWasKept) {
  EXPECT_TRUE(ChoiceCache::read().timings("bf16.product").empty());
  ChoiceCache cache = ChoiceCache::read(), other = ChoiceCache::read();
  cache.keep({{"bf16.product", timings_}});
  other.keep({{"fp16.gelu", {{"avx2", 1}}}});
  const ChoiceCache again = ChoiceCache::read();
  ASSERT_EQ(again.timings("bf16.product").size(), 2U);
  EXPECT_EQ(again.timings("bf16.product")[0].kernel, "avx2");
  EXPECT_EQ(again.timings("bf16.product")[0].seconds, timings_[0].seconds)
      << "to the last bit: the choice hangs on it";
  EXPECT_EQ(again.timings("bf16.product")[1].seconds, timings_[1].seconds);
  EXPECT_EQ(again.timings("fp16.gelu").size(), 1U) << "of another process";
  EXPECT_TRUE(again.timings("fp16.product").empty());
}

TEST_F(ChoiceCacheFile, KeepsTheLeastTimesOfThreeMomentsAnHourApart) {
  EXPECT_TRUE(ChoiceCache::read().is_due("bf16.gelu"));
  const auto keep = [](double ours, double libtorchs) {
    ChoiceCache::read().keep({{"bf16.gelu", {{"avx2", ours}, {"libtorch", libtorchs}}}});
  };
  keep(1, 3);
  EXPECT_FALSE(ChoiceCache::read().is_due("bf16.gelu")) << "measured just now";
  an_hour_passes();
  EXPECT_TRUE(ChoiceCache::read().is_due("bf16.gelu"));
  keep(2, 0.5);
  EXPECT_FALSE(ChoiceCache::read().is_due("bf16.gelu"));
  const std::vector<KernelTiming> least = ChoiceCache::read().timings("bf16.gelu");
  ASSERT_EQ(least.size(), 2U);
  EXPECT_EQ(least[0].seconds, 1);
  EXPECT_EQ(least[1].seconds, 0.5);
  an_hour_passes();
  EXPECT_TRUE(ChoiceCache::read().is_due("bf16.gelu"));
  keep(1, 3);
  an_hour_passes();
  EXPECT_FALSE(ChoiceCache::read().is_due("bf16.gelu")) << "three moments are enough";
}

TEST_F(ChoiceCacheFile, TimesOfOtherKernelsStartAnew) {
  ChoiceCache::read().keep({{"bf16.gelu", {{"avx2", 1}, {"libtorch", 1}}}});
  ChoiceCache::read().keep({{"bf16.gelu", {{"avx512", 2}, {"libtorch", 2}}}});
  const CachedTimings row = ChoiceCache::read().rows().at("bf16.gelu");
  EXPECT_EQ(row.moments, 1);
  ASSERT_EQ(row.timings.size(), 2U);
  EXPECT_EQ(row.timings[0].kernel, "avx512");
  EXPECT_EQ(row.timings[1].seconds, 2);
}

/// The first process timed the kernels while other programs slowed down ours.
TEST_F(ChoiceWithoutTime, AProcessAnHourLaterMeasuresAgain) {
  forget_cpu_kernel_choices();
  kernel_for(KernelFamily::kGelu, kBf16);  // measured
  std::vector<KernelTiming> slow = ChoiceCache::read().timings("bf16.gelu");
  ASSERT_FALSE(slow.empty());
  for (KernelTiming& timing : slow) timing.seconds = timing.kernel == "libtorch" ? 1 : 1e3;
  fs::remove(file());
  ChoiceCache::read().keep({{"bf16.gelu", slow}});
  forget_cpu_kernel_choices();
  EXPECT_EQ(kernel_for(KernelFamily::kGelu, kBf16), kLibtorchs) << "cached";
  an_hour_passes();
  forget_cpu_kernel_choices();
  set_calibration_budget(0);
  EXPECT_EQ(kernel_for(KernelFamily::kGelu, kBf16), kLibtorchs) << "cached: there is no time to measure";
  forget_cpu_kernel_choices();
  const Kernel kernel = kernel_for(KernelFamily::kGelu, kBf16);
  const CachedTimings row = ChoiceCache::read().rows().at("bf16.gelu");
  EXPECT_EQ(row.moments, 2);
  EXPECT_EQ(kernel_name(kernel), row.timings[fastest(row.timings)].kernel);
  for (const KernelTiming& timing : row.timings) EXPECT_LT(timing.seconds, 1) << timing.kernel;
}

/// What another process has just measured is not measured again beside a family of its group that is missing.
TEST_F(ChoiceWithoutTime, OnlyWhatIsDueIsMeasured) {
  set_calibration_budget(1e-9);
  kernel_for(KernelFamily::kGeluBackward, kBf16);
  forget_cpu_kernel_choices();
  kernel_for(KernelFamily::kGelu, kBf16);
  const auto rows = ChoiceCache::read().rows();
  EXPECT_EQ(rows.at("bf16.gelu").moments, 1);
  EXPECT_EQ(rows.at("bf16.gelu_backward").moments, 1);
}

TEST_F(ChoiceCacheFile, AnotherFileIsAsNone) {
  ChoiceCache cache = ChoiceCache::read();
  cache.keep({{"bf16.product", timings_}});
  const std::string good = text();
  for (const std::string& bad :
       {std::string(), std::string("garbage\n"), "X" + good, good + "bf16.gelu 1 1 avx2\n",
        good + "bf16.gelu 1 1 avx2 nan\n", good + "bf16.gelu 1 1 avx2 -1\n", good + "bf16.gelu 1 1 avx2 1x\n",
        good + "bf16.gelu\n", good + "bf16.gelu 1 1\n", good + "bf16.gelu 0 1 avx2 1\n",
        good + "bf16.gelu 1 -1 avx2 1\n", good + "bf16.gelu avx2 1\n", good + std::string(1 << 17, 'x')}) {
    write(bad);
    EXPECT_TRUE(ChoiceCache::read().timings("bf16.product").empty()) << bad.substr(0, 300);
  }
  write(good);
  EXPECT_FALSE(ChoiceCache::read().timings("bf16.product").empty());
}

TEST_F(ChoiceCacheFile, IsNoLinkAndNoPipe) {
  ChoiceCache cache = ChoiceCache::read();
  cache.keep({{"bf16.product", timings_}});
  const fs::path name = file(), real = name.parent_path() / "real";
  fs::rename(name, real);
  fs::create_symlink(real, name);
  EXPECT_TRUE(ChoiceCache::read().timings("bf16.product").empty());
  const std::string before = [&] {
    std::ifstream stream(real);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  }();
  cache.keep({{"fp16.gelu", timings_}});
  std::ifstream stream(real);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(stream), {}), before) << "the file behind the link";
  fs::remove(name);
  ASSERT_EQ(mkfifo(name.c_str(), 0600), 0);
  EXPECT_TRUE(ChoiceCache::read().timings("bf16.product").empty()) << "and does not wait";
}

TEST_F(ChoiceCacheFile, AFolderThatCannotBeWrittenIsNoError) {
  setenv("MANTISSA_CACHE_DIR", "/proc/no/such", 1);
  ChoiceCache cache = ChoiceCache::read();
  cache.keep({{"bf16.product", timings_}});
  EXPECT_EQ(cache.timings("bf16.product").size(), 2U);
  setenv("MANTISSA_CACHE_DIR", "", 1);
  ChoiceCache none = ChoiceCache::read();
  none.keep({{"bf16.product", timings_}});
  EXPECT_TRUE(ChoiceCache::read().timings("bf16.product").empty());
}

}  // namespace
}  // namespace mantissa::choice_cache_test
