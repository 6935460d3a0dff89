#include "mantissa/kernels/aten/choice.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "mantissa/kernels/aten/calibration_internal.h"
#include "mantissa/kernels/aten/choice_cache_internal.h"
#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::choice_test {
namespace {

using test::error_of;
using testing::HasSubstr;
namespace fs = std::filesystem;

/// The tests of this program use our own kernels, even if libtorch's are faster on this CPU.
void pin_our_own() { pin_cpu_kernels(tier_name(cpu_tier())); }

class OwnKernels final : public testing::Environment {
 public:
  void SetUp() override { pin_our_own(); }
};
const testing::Environment* const kOwnKernels = testing::AddGlobalTestEnvironment(new OwnKernels);

class Choice : public testing::Test {
 protected:
  void SetUp() override { forget_cpu_kernel_choices(); }
  void TearDown() override { pin_our_own(); }

  static Kernel product(kernels::Element element) { return kernel_for(KernelFamily::kProduct, element); }
  static constexpr kernels::Element kBf16 = kernels::Element::kBFloat16, kFp16 = kernels::Element::kFloat16;
};

TEST_F(Choice, ConvolutionsHaveFamiliesBySizeAndLayout) {
  const auto family = [](const ConvolutionKind& kind) { return family_of(ConvolutionPass::kForward, kind); };
  ConvolutionKind dense{.channels = 8, .outputs = 8, .products = (1 << 25) - 1};
  EXPECT_EQ(family(dense), KernelFamily::kSmallConvolution);
  dense.products += 1;
  EXPECT_EQ(family(dense), KernelFamily::kConvolution);
  dense = {.channels = 8, .outputs = 8, .products = 1 << 23, .channels_last = true};
  EXPECT_EQ(family(dense), KernelFamily::kConvolution);

  ConvolutionKind depthwise{.groups = 64, .products = (1 << 22) - 1, .channels_last = true};
  EXPECT_EQ(family(depthwise), KernelFamily::kDepthwiseLast);
  depthwise.products += 1;
  EXPECT_EQ(family(depthwise), KernelFamily::kLargeDepthwiseLast);
  EXPECT_EQ(family_of(ConvolutionPass::kByWeight, depthwise), KernelFamily::kLargeDepthwiseLastByWeight);
  depthwise.strided = true;
  EXPECT_EQ(family(depthwise), KernelFamily::kStridedDepthwiseLast);
  depthwise.channels_last = depthwise.strided = false;
  EXPECT_EQ(family(depthwise), KernelFamily::kDepthwise);
}

TEST_F(Choice, ProductsHaveFamiliesBySize) {
  const auto family = [](int64_t m, int64_t n, int64_t k, int64_t batch = 1) {
    kernels::Gemm g;
    g.m = m, g.n = n, g.k = k, g.batch = batch;
    return family_of(g);
  };
  EXPECT_EQ(family(96, 96, 95), KernelFamily::kSmallProduct);
  EXPECT_EQ(family(96, 96, 96), KernelFamily::kProduct);
  EXPECT_EQ(family(256, 256, 255), KernelFamily::kProduct);
  EXPECT_EQ(family(256, 256, 256), KernelFamily::kLargeProduct);
  EXPECT_EQ(family(256, 256, 127, 2), KernelFamily::kBatchedProduct);
  EXPECT_EQ(family(256, 256, 128, 2), KernelFamily::kLargeBatchedProduct);
  EXPECT_EQ(family(3, 8192, 8192), KernelFamily::kFewRows);
}

TEST(SmallCalls, OnlyWhatGrowsWithTheWorkIsTooSlow) {
  const auto can_win = [](double libtorch, double four_times) {
    const auto measure = [=] {
      EXPECT_GT(four_times, 0) << "is not needed";
      return four_times * 1e-6;
    };
    return can_win_typical_call({.ours = 20e-6,
                                 .libtorch = libtorch * 1e-6,
                                 .libtorch_float32 = 10e-6,
                                 .libtorch_four_times = measure});
  };
  EXPECT_TRUE(can_win(39, 0)) << "less than twice our time";
  EXPECT_TRUE(can_win(60, 70)) << "oneDNN with AMX, which has to start";
  EXPECT_TRUE(can_win(190, 200)) << "the same on a busy machine";
  EXPECT_FALSE(can_win(205, 820)) << "a CPU without 16-bit products";
  EXPECT_FALSE(can_win(190, 580));
  EXPECT_FALSE(can_win(5000, 0)) << "nothing takes so long to start";
  EXPECT_FALSE(can_win(std::numeric_limits<double>::infinity(), 0)) << "refused";
}

TEST_F(Choice, AttentionsHaveFamiliesBySize) {
  EXPECT_EQ(attention_family_of((1 << 26) - 1), KernelFamily::kAttention);
  EXPECT_EQ(attention_family_of(1 << 26), KernelFamily::kLargeAttention);
}

TEST_F(Choice, APatternMayBeginWithAStar) {
  pin_cpu_kernels("generic,bf16.*product=libtorch");
  for (const KernelFamily family :
       {KernelFamily::kLargeProduct, KernelFamily::kProduct, KernelFamily::kSmallProduct,
        KernelFamily::kBatchedProduct, KernelFamily::kLargeBatchedProduct})
    EXPECT_EQ(kernel_for(family, kBf16), kLibtorchs);
  EXPECT_EQ(kernel_for(KernelFamily::kFewRows, kBf16), (Kernel{CpuTier::kGeneric}));
}

TEST_F(Choice, PinsFamilies) {
  pin_cpu_kernels("generic,fp16.conv*=libtorch,product=libtorch,bf16.product=generic");
  const Kernel generic{CpuTier::kGeneric};
  EXPECT_EQ(kernel_for(KernelFamily::kGelu, kBf16), generic);
  EXPECT_EQ(kernel_for(KernelFamily::kConvolution, kBf16), generic);
  EXPECT_EQ(kernel_for(KernelFamily::kConvolution, kFp16), kLibtorchs);
  EXPECT_EQ(kernel_for(KernelFamily::kConvolutionByWeight, kFp16), kLibtorchs);
  EXPECT_EQ(kernel_for(KernelFamily::kDepthwise, kFp16), generic);
  EXPECT_EQ(product(kFp16), kLibtorchs);
  EXPECT_EQ(product(kBf16), generic);
  EXPECT_EQ(kernel_for(KernelFamily::kUnscale, kernels::Element::kFloat32), generic);
  EXPECT_THAT(cpu_kernel_choices(), HasSubstr("bf16.product=generic"));
  EXPECT_THAT(cpu_kernel_choices(), HasSubstr("fp16.convolution=libtorch"));
  pin_cpu_kernels("");
  EXPECT_EQ(product(kBf16), generic) << "nothing changes";
}

TEST_F(Choice, APinOfATierMeansItsBestBuilds) {
  const std::string tier = tier_name(cpu_tier());
  pin_cpu_kernels(tier);
  for (const kernels::Element element : {kBf16, kFp16})
    for (int family = 0; family < kKernelFamilies; ++family) {
      const Kernel kernel = kernel_for(static_cast<KernelFamily>(family), element);
      ASSERT_TRUE(kernel.tier.has_value()) << family;
      EXPECT_TRUE(cpu_features().includes(features_of(*kernel.tier)));
    }
}

TEST_F(Choice, AllThatWasChosenPinsItAgain) {
  pin_cpu_kernels("generic,gelu=libtorch");
  for (int family = 0; family < kKernelFamilies; ++family)
    for (const kernels::Element element : {kBf16, kFp16})
      kernel_for(static_cast<KernelFamily>(family), element);
  const std::string choices = cpu_kernel_choices();
  pin_cpu_kernels("libtorch");
  pin_cpu_kernels(choices);
  for (int family = 0; family < kKernelFamilies; ++family)
    for (const kernels::Element element : {kBf16, kFp16})
      kernel_for(static_cast<KernelFamily>(family), element);
  kernel_for(KernelFamily::kUnscale, kernels::Element::kFloat32);
  EXPECT_THAT(cpu_kernel_choices(), HasSubstr(choices.substr(choices.find("bf16"))));
}

TEST_F(Choice, BadPinsNameTheCureAndChangeNothing) {
  pin_cpu_kernels("product=generic");
  const auto error = [](const std::string& pins) { return error_of([&] { pin_cpu_kernels(pins); }); };
  EXPECT_THAT(error("avx3"), HasSubstr("there is no kernel 'avx3'"));
  EXPECT_THAT(error("avx3"), HasSubstr("choose one of libtorch, generic, avx2"));
  EXPECT_THAT(error("avx51"), HasSubstr("did you mean 'avx512'?"));
  EXPECT_THAT(error("product=libtorch,produkt=libtorch"),
              HasSubstr("no family 'produkt' of kernels; did you mean 'product'?"));
  EXPECT_THAT(error("fp8.product=libtorch"), HasSubstr("no kernels for 'fp8'; choose bf16, fp16 or fp32"));
  EXPECT_THAT(error("fp32.product=libtorch"), HasSubstr("no family 'product'"));
  EXPECT_THAT(error("product="), HasSubstr("there is no kernel ''"));
  EXPECT_THAT(error("generic,"), HasSubstr("there is no kernel ''"));
  EXPECT_EQ(product(kBf16), Kernel{CpuTier::kGeneric});
  if (cpu_tier() == CpuTier::kAmxBf16) return;
  EXPECT_THAT(error("amx_bf16"), HasSubstr("this CPU runs kernels up to tier"));
}

TEST_F(Choice, ACheckpointsChoicesYieldToTheUsers) {
  if (!enable_cpu_kernels()) GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0";
  for (int family = 0; family < kKernelFamilies; ++family)
    kernel_for(static_cast<KernelFamily>(family), kFp16);
  const std::string choices = cpu_kernel_choices();
  EXPECT_THAT(resume_cpu_kernels(choices), testing::IsEmpty());
  EXPECT_THAT(resume_cpu_kernels("fp16.product=neon," + choices + ",bf16.nothing=generic"),
              testing::ElementsAre("fp16.product=neon", "bf16.nothing=generic"));
  pin_cpu_kernels("gelu=generic");
  EXPECT_THAT(resume_cpu_kernels("bf16.gelu=libtorch,fp16.gelu=libtorch"), testing::IsEmpty());
  EXPECT_EQ(kernel_for(KernelFamily::kGelu, kBf16), Kernel{CpuTier::kGeneric}) << "as the user said";
}

TEST_F(Choice, PinsThatTheEnvironmentOverrulesAreReported) {
  if (!enable_cpu_kernels()) GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0 already";
  ASSERT_EQ(setenv("MANTISSA_CPU_KERNELS", "0", 1), 0);
  struct Collect final : c10::WarningHandler {
    void process(const c10::Warning& warning) override { messages.push_back(warning.msg()); }
    std::vector<std::string> messages;
  } collect;
  {
    const c10::WarningUtils::WarningHandlerGuard guard(&collect);
    pin_cpu_kernels("gelu=generic");
    pin_cpu_kernels("");
    pin_cpu_kernels("libtorch,fp16.gelu=libtorch,gelu=measured");
  }
  EXPECT_THAT(collect.messages, testing::ElementsAre(HasSubstr("MANTISSA_CPU_KERNELS=0 leaves")));
  EXPECT_THAT(resume_cpu_kernels("bf16.gelu=generic,fp16.gelu=libtorch"),
              testing::ElementsAre("bf16.gelu=generic"));
  const std::string choices = cpu_kernel_choices();
  EXPECT_THAT(resume_cpu_kernels(choices), testing::IsEmpty());
  unsetenv("MANTISSA_CPU_KERNELS");
  EXPECT_THAT(resume_cpu_kernels(choices), testing::IsEmpty());
  EXPECT_EQ(product(kBf16), kLibtorchs) << "as it was computed before";
}

TEST_F(Choice, ComputesWithWhatIsPinned) {
  if (!enable_cpu_kernels()) GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0";
  const at::Tensor a = at::rand({40, 700}).to(at::kHalf), b = at::rand({700, 40}).to(at::kHalf);
  pin_cpu_kernels("libtorch");
  const at::Tensor with_libtorch = a.mm(b);
  disable_cpu_kernels();
  const at::Tensor stock = a.mm(b);
  enable_cpu_kernels();
  EXPECT_TRUE(test::same_bits(with_libtorch, stock));
  pin_cpu_kernels("generic");
  const at::Tensor generic = a.mm(b);
  const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
  test::expect_within_bound(generic, exact, exact, 700);
  disable_cpu_kernels();
}

TEST_F(Choice, IsTheFastestThatWasTimedAndThePreferredOneOfEquals) {
  EXPECT_EQ(fastest({{"a", 1}, {"b", 0.97}, {"c", 1.2}}), 0);
  EXPECT_EQ(fastest({{"a", 1}, {"b", 0.9}, {"c", 0.88}}), 1);
  EXPECT_EQ(fastest({{"a", 1}, {"b", 0.9}, {"c", 0.5}}), 2);
  EXPECT_EQ(fastest({{"a", std::numeric_limits<double>::infinity()}, {"b", 1}}), 1);
}

/// On every CPU, each row of the table follows from its timings.
TEST_F(Choice, TheTableHoldsItsOwnReasons) {
  const std::vector<KernelChoice> rows = cpu_kernel_table();
  // Unscaling and the six families of weights in 4 and 8 bits exist in float32, too.
  EXPECT_EQ(rows.size(), size_t{2} * kKernelFamilies + 7);
  for (const KernelChoice& row : rows) {
    SCOPED_TRACE(row.dtype + "." + row.family);
    ASSERT_THAT(row.source, testing::AnyOf("measured", "cached"));
    ASSERT_FALSE(row.timings.empty());
    EXPECT_EQ(row.timings.back().kernel, "libtorch");
    EXPECT_EQ(row.kernel, row.timings[fastest(row.timings)].kernel);
    for (const KernelTiming& timing : row.timings) EXPECT_GT(timing.seconds, 0) << timing.kernel;
    EXPECT_GT(row.over_float32, 0);
  }
}

TEST_F(Choice, MeasuringLeavesRandomNumbersAndGradientModeAlone) {
  at::manual_seed(5);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(5);
  const at::NoGradGuard no_grad;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  for (int family = 0; family < kKernelFamilies; ++family)
    kernel_for(static_cast<KernelFamily>(family), kFp16);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
}

TEST_F(Choice, ManyThreadsAskAtOnce) {
  std::vector<Kernel> found(8);
  std::vector<std::thread> threads;
  for (Kernel& kernel : found) threads.emplace_back([&kernel] { kernel = product(kBf16); });
  for (std::thread& thread : threads) thread.join();
  for (const Kernel& kernel : found) EXPECT_EQ(kernel, found[0]);
}

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
    pin_our_own();
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
}  // namespace mantissa::choice_test
