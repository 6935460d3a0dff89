#include "mantissa/core/cpu_features.h"

#include <cstdlib>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <utility>

#include <ATen/cpu/Utils.h>
#include <torch/torch.h>

#include "mantissa/core/device.h"

namespace mantissa::cpu_features_test {
namespace {

CpuFeature feature_at(int index) { return static_cast<CpuFeature>(index); }

TEST(CpuFeatures, IncludeTheirSubsetsAlone) {
  const CpuFeatures none, avx2 = {CpuFeature::kAvx2}, neon = {CpuFeature::kNeon}, both = avx2 | neon;
  EXPECT_TRUE(none.includes(none));
  EXPECT_TRUE(both.includes(none));
  EXPECT_TRUE(both.includes(avx2));
  EXPECT_TRUE(both.includes(both));
  EXPECT_FALSE(avx2.includes(both));
  EXPECT_FALSE(avx2.includes(neon)) << "sets have no order";
  EXPECT_FALSE(neon.includes(avx2));
  EXPECT_EQ(both & neon, neon);
  EXPECT_EQ(avx2 & neon, none);
}

TEST(CpuFeatures, HaveDistinctBitsAndNames) {
  for (int i = 0; i < kCpuFeatures; ++i)
    for (int j = 0; j < kCpuFeatures; ++j) {
      EXPECT_EQ(CpuFeatures{feature_at(i)}.has(feature_at(j)), i == j) << i << ", " << j;
      EXPECT_EQ(cpu_feature_name(feature_at(i)) == cpu_feature_name(feature_at(j)), i == j);
    }
}

/// Without any one of these features the kernels of a tier must not run, although an ordering of tiers would
/// allow it.
TEST(CpuFeatures, AMissingOneRulesOutTheTiersThatNeedIt) {
  const CpuFeatures all = features_of(CpuTier::kAmxBf16);
  for (int i = 0; i < kCpuFeatures; ++i) {
    CpuFeatures others;
    for (int j = 0; j < kCpuFeatures; ++j)
      if (j != i && all.has(feature_at(j))) others = others | CpuFeatures{feature_at(j)};
    for (const CpuTier tier : cpu_tiers())
      EXPECT_EQ(others.includes(features_of(tier)), !features_of(tier).has(feature_at(i)))
          << tier_name(tier) << " without " << cpu_feature_name(feature_at(i));
  }
  EXPECT_EQ(best_tier({CpuFeature::kNeon}), CpuTier::kGeneric);
  EXPECT_EQ(best_tier({CpuFeature::kAmxTile, CpuFeature::kAmxBf16}), CpuTier::kGeneric);
}

TEST(CpuTier, OneThatIncludesAnotherComesAfterIt) {
  for (size_t i = 0; i < cpu_tiers().size(); ++i)
    for (size_t j = i + 1; j < cpu_tiers().size(); ++j)
      EXPECT_FALSE(features_of(cpu_tiers()[i]).includes(features_of(cpu_tiers()[j])));
}

TEST(CpuTier, TheCapTakesFeaturesAwayAndAddsNone) {
  for (const CpuTier tier : cpu_tiers()) {
    const CpuFeatures features = features_of(tier) | CpuFeatures{CpuFeature::kAmxTile};
    EXPECT_EQ(capped_cpu_features(features, nullptr), features);
    EXPECT_EQ(capped_cpu_features(features, ""), features);
    for (const CpuTier cap : cpu_tiers()) {
      const CpuFeatures capped = capped_cpu_features(features, tier_name(cap).c_str());
      EXPECT_TRUE(features.includes(capped));
      EXPECT_TRUE(features_of(cap).includes(capped));
      EXPECT_EQ(best_tier(capped), features_of(tier).includes(features_of(cap)) ? cap : tier);
    }
  }
}

TEST(CpuTier, AnUnknownCapIsAnErrorThatListsTheTiers) {
  for (const char* const cap : {"avx3", "AVX2", "avx512_bf", " "}) {
    try {
      capped_cpu_features({}, cap);
      FAIL() << cap;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  testing::HasSubstr("generic, avx2, avx512, avx512_vnni, avx512_bf16, amx_bf16"));
      EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("MANTISSA_MAX_ISA=" + std::string(cap)));
    }
  }
}

TEST(CpuTier, IsTheHardwaresUnderTheEnvironmentsCap) {
  EXPECT_EQ(cpu_features(), capped_cpu_features(hardware_cpu_features(), std::getenv("MANTISSA_MAX_ISA")));
  EXPECT_EQ(cpu_tier(), best_tier(cpu_features()));
  EXPECT_EQ(hardware_cpu_tier(), best_tier(hardware_cpu_features()));
}

/// Compares two sources: the CPU's own instructions, and the flags that the system's kernel lists.
TEST(CpuFeatures, AgreeWithTheSystem) {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line) && line.rfind("flags", 0) != 0) {
  }
  if (line.empty()) GTEST_SKIP() << "/proc/cpuinfo lists no x86 flags here";
  line += " ";
  for (const auto& [feature, flag] :
       std::initializer_list<std::pair<CpuFeature, const char*>>{{CpuFeature::kAvx2, "avx2"},
                                                                 {CpuFeature::kFma, "fma"},
                                                                 {CpuFeature::kF16c, "f16c"},
                                                                 {CpuFeature::kAvxVnni, "avx_vnni"},
                                                                 {CpuFeature::kAvx512F, "avx512f"},
                                                                 {CpuFeature::kAvx512Bw, "avx512bw"},
                                                                 {CpuFeature::kAvx512Dq, "avx512dq"},
                                                                 {CpuFeature::kAvx512Vl, "avx512vl"},
                                                                 {CpuFeature::kAvx512Vnni, "avx512_vnni"},
                                                                 {CpuFeature::kAvx512Bf16, "avx512_bf16"},
                                                                 {CpuFeature::kAvx512Fp16, "avx512_fp16"},
                                                                 {CpuFeature::kAmxTile, "amx_tile"},
                                                                 {CpuFeature::kAmxInt8, "amx_int8"},
                                                                 {CpuFeature::kAmxBf16, "amx_bf16"}})
    EXPECT_EQ(hardware_cpu_features().has(feature),
              line.find(std::string(" ") + flag + " ") != std::string::npos)
        << flag;
}

TEST(CpuFeatures, AgreeWithLibtorch) {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  int compared = 0;
  for (int i = 0; i < kCpuFeatures; ++i) {
    const auto found = capabilities.find(cpu_feature_name(feature_at(i)));
    if (found == capabilities.end()) continue;
    EXPECT_EQ(hardware_cpu_features().has(feature_at(i)), found->second.toBool()) << found->first;
    EXPECT_EQ(cpu_has(found->first), found->second.toBool()) << found->first;
    ++compared;
  }
#if defined(__x86_64__)
  EXPECT_EQ(compared, kCpuFeatures - 1) << "all but NEON";
#endif
  EXPECT_FALSE(cpu_has("avx3"));
}

}  // namespace
}  // namespace mantissa::cpu_features_test
