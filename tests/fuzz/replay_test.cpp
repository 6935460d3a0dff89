// Runs every file of every corpus through its target, compiled with the users' compiler, so that fixed
// findings stay fixed.
#include <algorithm>
#include <filesystem>
#include <gtest/gtest.h>
#include <vector>

#include "mantissa/core/test_support_internal.h"
#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {
namespace {

namespace fs = std::filesystem;

class FuzzCorpus : public testing::TestWithParam<std::pair<const char*, Target*>> {};

TEST_P(FuzzCorpus, HoldsNoFinding) {
  const auto& [name, target] = GetParam();
  size_t files = 0;
  for (const auto& entry :
       fs::directory_iterator(fs::path(MANTISSA_SOURCE_DIR) / "tests/fuzz/corpus" / name)) {
    SCOPED_TRACE(entry.path().string());
    const std::string bytes = content_of(entry.path());
    EXPECT_NO_THROW(target(bytes));
    ++files;
  }
  EXPECT_GT(files, 0U);
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, FuzzCorpus, testing::ValuesIn(kTargets),
                         [](const auto& info) { return std::string(info.param.first); });

}  // namespace
}  // namespace mantissa::fuzz
