#include "mantissa/data/text.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <unistd.h>

#include <torch/torch.h>

namespace mantissa::text_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

at::Tensor bytes(int64_t n) { return at::arange(n, at::kByte); }
at::Tensor row(std::vector<int64_t> values) { return at::tensor(values, at::kLong); }

TEST(Text, MissingEmptyAndFolder) {
  std::string name = (fs::temp_directory_path() / "mantissa-text-XXXXXX").string();
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const fs::path folder = name;
  const auto error = [](const fs::path& path) {
    try {
      load_text(path);
    } catch (const c10::Error& e) {
      return std::string(e.what_without_backtrace());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error(folder / "none"), HasSubstr("none': no such file; check the path"));
  EXPECT_THAT(error(folder), HasSubstr("not a regular file"));
  std::ofstream(folder / "f").close();
  EXPECT_THAT(error(folder / "f"), HasSubstr("is empty"));
  EXPECT_THAT(error(folder / "f" / "g"), HasSubstr("check the path"));
  std::ofstream(folder / "f", std::ios::binary) << std::string("a\0\r\n\xff", 5);
  EXPECT_TRUE(at::equal(load_text(folder / "f"), at::tensor({97, 0, 13, 10, 255}, at::kByte)));
  fs::remove_all(folder);
}

TEST(Text, SplitHoldsOutTheEnd) {
  const auto [train, held_out] = split_text(bytes(10), 0.1);
  EXPECT_TRUE(at::equal(train, bytes(9)));
  EXPECT_TRUE(at::equal(held_out, at::tensor({9}, at::kByte)));
  EXPECT_THROW(split_text(bytes(10), 0.01), c10::ValueError);
  EXPECT_THROW(split_text(bytes(10), 1), c10::ValueError);
  EXPECT_THROW(split_text(bytes(10).view({2, 5}), 0.5), c10::ValueError);
}

TEST(TextDataset, RefusesWhatHasNoWindow) {
  EXPECT_THROW(TextDataset(bytes(4), 4), c10::ValueError);
  EXPECT_THROW(TextDataset(bytes(4), std::numeric_limits<int64_t>::max()), c10::ValueError);
  EXPECT_THROW(TextDataset(bytes(4), 0), c10::ValueError);
  EXPECT_THROW(TextDataset(bytes(4), 2, 0), c10::ValueError);
  EXPECT_THROW(TextDataset(at::arange(9), 2), c10::ValueError);
  EXPECT_THROW(TextDataset(bytes(8).view({2, 4}), 2), c10::ValueError);
  EXPECT_EQ(TextDataset(bytes(5), 4).size(), 1);
}

TEST(TextDataset, TargetsAreOneByteFurtherOn) {
  const TextDataset dataset(bytes(8), 3);
  EXPECT_EQ(dataset.size(), 5);
  const Batch batch = dataset.get_batch(row({4, 0}));
  EXPECT_TRUE(at::equal(batch.data, row({4, 5, 6, 0, 1, 2}).view({2, 3})));
  EXPECT_TRUE(at::equal(batch.target, row({5, 6, 7, 1, 2, 3}).view({2, 3})));
  EXPECT_THROW(dataset.get_batch(row({5})), c10::ValueError);
  EXPECT_THROW(dataset.get_batch(row({-1})), c10::ValueError);
}

TEST(TextDataset, StrideOfContextCoversEachTargetOnce) {
  for (int64_t n = 4; n < 20; ++n) {
    const TextDataset dataset(bytes(n), 3, 3);
    EXPECT_EQ(dataset.size(), (n - 1) / 3) << n;
    const Batch batch = dataset.get_batch(at::arange(dataset.size(), at::kLong));
    EXPECT_TRUE(at::equal(batch.target.flatten(), at::arange(1, 1 + 3 * dataset.size(), at::kLong))) << n;
  }
  const TextDataset huge(bytes(9), 3, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(huge.size(), 1);
  EXPECT_EQ(huge.get_batch(row({0})).data[0][2].item<int64_t>(), 2);
}

TEST(TextDataset, NonContiguousBytes) {
  const TextDataset dataset(bytes(20).slice(0, 0, 20, 2), 2);
  EXPECT_TRUE(at::equal(dataset.get_batch(row({1})).data, row({2, 4}).view({1, 2})));
}

}  // namespace
}  // namespace mantissa::text_test
