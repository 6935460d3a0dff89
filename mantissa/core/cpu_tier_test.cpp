#include "mantissa/core/cpu_tier.h"

#include <cstdlib>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include <torch/torch.h>

namespace mantissa::cpu_tier_test {
namespace {

TEST(CpuTier, TheCapLowersAndNeverRaises) {
  for (const CpuTier tier : cpu_tiers()) {
    EXPECT_EQ(capped_cpu_tier(tier, nullptr), tier);
    EXPECT_EQ(capped_cpu_tier(tier, ""), tier);
    for (const CpuTier cap : cpu_tiers())
      EXPECT_EQ(capped_cpu_tier(tier, tier_name(cap).c_str()), std::min(tier, cap));
  }
}

TEST(CpuTier, AnUnknownCapIsAnErrorThatListsTheTiers) {
  for (const char* const cap : {"avx3", "AVX2", "avx512_bf", " "}) {
    try {
      capped_cpu_tier(CpuTier::kGeneric, cap);
      FAIL() << cap;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("generic, avx2, avx512, avx512_bf16"));
      EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("MANTISSA_MAX_ISA=" + std::string(cap)));
    }
  }
}

TEST(CpuTier, IsTheHardwaresUnderTheEnvironmentsCap) {
  EXPECT_EQ(cpu_tier(), capped_cpu_tier(hardware_cpu_tier(), std::getenv("MANTISSA_MAX_ISA")));
}

/// Two witnesses: the instructions asked directly, and what the kernel of the system lists.
TEST(CpuTier, AgreesWithTheSystem) {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line) && line.rfind("flags", 0) != 0) {
  }
  if (line.empty()) GTEST_SKIP() << "/proc/cpuinfo lists no x86 flags here";
  const auto has = [&, flags = line + " "](const std::string& flag) {
    return flags.find(" " + flag + " ") != std::string::npos;
  };
  CpuTier expected = CpuTier::kGeneric;
  if (has("avx2") && has("fma") && has("f16c")) {
    expected = CpuTier::kAvx2;
    if (has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl"))
      expected = has("avx512_bf16") ? CpuTier::kAvx512Bf16 : CpuTier::kAvx512;
  }
  EXPECT_EQ(hardware_cpu_tier(), expected);
}

}  // namespace
}  // namespace mantissa::cpu_tier_test
