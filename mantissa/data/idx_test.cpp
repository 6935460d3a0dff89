#include "mantissa/data/idx.h"

#include <cstring>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::idx_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

std::string big_endian(uint32_t n) { return {char(n >> 24), char(n >> 16), char(n >> 8), char(n)}; }
std::string idx(int type, const std::vector<uint32_t>& shape, const std::string& data) {
  std::string out{0, 0, char(type), char(shape.size())};
  for (const uint32_t n : shape) out += big_endian(n);
  return out + data;
}
const std::string kGood = idx(8, {2, 3}, "abcdef");

std::string parse_error(const std::string& bytes) {
  return error_of([&] { parse_idx(bytes, "mem"); });
}

class IdxFile : public InFolder {
 protected:
  void SetUp() override {
    InFolder::SetUp();
    path_ = folder_ / "f";
  }
  void write(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  void write_gzip(const std::string& bytes) const {
    gzFile file = gzopen(path_.c_str(), "wb");
    gzwrite(file, bytes.data(), unsigned(bytes.size()));
    gzclose(file);
  }
  std::string content() const { return content_of(path_); }
  std::string read_error() const {
    return error_of([&] { read_idx(path_); });
  }
  fs::path path_;
};

TEST(Idx, EveryCutIsTruncated) {
  EXPECT_EQ(parse_error(kGood), "no error");
  for (size_t n = 0; n < kGood.size(); ++n)
    EXPECT_THAT(parse_error(kGood.substr(0, n)), HasSubstr("truncated")) << n;
  EXPECT_THAT(parse_error(kGood.substr(0, 3)), HasSubstr("4 bytes of magic number expected, 3 found; get"));
  EXPECT_THAT(parse_error(kGood.substr(0, 9)), HasSubstr("a header of 12 bytes expected, 9 found"));
  EXPECT_THAT(parse_error(kGood.substr(0, 15)),
              HasSubstr("18 bytes expected by its header of shape [2, 3], at most 15"));
  EXPECT_THAT(parse_error(kGood + "g"), HasSubstr("it has data after the 18 bytes"));
}

TEST(Idx, WrongMagicNumber) {
  for (const std::string& magic :
       {std::string("\x1f\x8b\x08\x01", 4), std::string("\0\0\x07\x01", 4), std::string("\0\0\x0a\x01", 4),
        std::string("\0\x01\x08\x01", 4), std::string("\0\0\x08\0", 4), std::string("\0\0\x08\x09", 4)}) {
    EXPECT_THAT(parse_error(magic + std::string(100, '\0')), HasSubstr("IDX file 'mem': wrong magic number"));
  }
}

TEST(Idx, AbsurdSizesAreRefusedBeforeAllocating) {
  EXPECT_THAT(parse_error(idx(8, {0x80000000u}, "")), HasSubstr("promises over 2147483647 elements"));
  EXPECT_THAT(parse_error(idx(8, {0xffffffffu, 0xffffffffu, 0xffffffffu}, "")), HasSubstr("promises over"));
  EXPECT_THAT(parse_error(idx(8, {0, 0xffffffffu}, "")), HasSubstr("promises over"));
  EXPECT_THAT(parse_error(idx(14, {0x7fffffffu}, "1234")), HasSubstr("17179869184 bytes expected"));
}

TEST(Idx, EveryElementTypeIsBigEndian) {
  const auto read = [](int type, const std::string& data, uint32_t n) {
    return parse_idx(idx(type, {n}, data), "mem");
  };
  EXPECT_TRUE(at::equal(read(0x08, "\xff\x01", 2), at::tensor({255, 1}, at::kByte)));
  EXPECT_TRUE(at::equal(read(0x09, "\xff\x01", 2), at::tensor({-1, 1}, at::kChar)));
  EXPECT_TRUE(
      at::equal(read(0x0B, std::string("\xff\xfe\x01\x00", 4), 2), at::tensor({-2, 256}, at::kShort)));
  EXPECT_TRUE(
      at::equal(read(0x0C, std::string("\x01\x02\x03\x04", 4), 1), at::tensor({0x01020304}, at::kInt)));
  EXPECT_TRUE(at::equal(read(0x0D, std::string("\xc0\x20\x00\x00", 4), 1), at::tensor({-2.5f})));
  EXPECT_TRUE(
      at::equal(read(0x0E, std::string("\x3f\xf8\0\0\0\0\0\0", 8), 1), at::tensor({1.5}, at::kDouble)));
  EXPECT_EQ(parse_idx(idx(8, {2, 0, 3}, ""), "mem").sizes(), (std::vector<int64_t>{2, 0, 3}));
}

// No single wrong byte of a good file may crash; a result that passes has the size of the bytes.
TEST(Idx, SurvivesEveryChangedByte) {
  for (size_t i = 0; i < kGood.size(); ++i) {
    for (int c = 0; c < 256; ++c) {
      std::string bad = kGood;
      bad[i] = char(c);
      if (parse_error(bad) == "no error") {
        EXPECT_EQ(parse_idx(bad, "mem").nbytes(), 6u);
      }
    }
  }
}

TEST_F(IdxFile, MissingAndFolder) {
  EXPECT_THAT(read_error(),
              AllOf(HasSubstr(path_.string()), HasSubstr("No such file or directory; check the path")));
  EXPECT_THAT(error_of([&] { read_idx(folder_); }), HasSubstr("not a regular file"));
}

TEST_F(IdxFile, PlainAndGzip) {
  write(kGood);
  EXPECT_TRUE(at::equal(read_idx(path_), parse_idx(kGood, "mem")));
  write_gzip(kGood);
  EXPECT_TRUE(at::equal(read_idx(path_), parse_idx(kGood, "mem")));
  // The best case of compression: the bound on a gzip file's contents must not refuse it.
  write_gzip(idx(8, {5'000'000}, std::string(5'000'000, '\0')));
  EXPECT_EQ(read_idx(path_).numel(), 5'000'000);
}

TEST_F(IdxFile, PlainFileCutOrEmpty) {
  write(kGood.substr(0, 14));
  EXPECT_THAT(read_error(), HasSubstr("18 bytes expected by its header of shape [2, 3], at most 14 found"));
  write("");
  EXPECT_THAT(read_error(), HasSubstr("4 bytes of magic number expected, 0 found"));
}

TEST_F(IdxFile, EveryCutAndEveryChangedByteOfAGzipFile) {
  write_gzip(kGood);
  const std::string whole = content();
  for (size_t n = 0; n < whole.size(); ++n) {
    write(whole.substr(0, n));
    EXPECT_NE(read_error(), "no error") << n;
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string bad = whole;
    bad[i] = char(bad[i] ^ 0x55);
    write(bad);
    const std::string error = read_error();  // bytes 4 to 9 are the time and flags, which nothing depends on
    if (i < 4 || i > 9) {
      EXPECT_NE(error, "no error") << i;
    }
  }
  write(whole.substr(0, whole.size() - 12));
  EXPECT_THAT(read_error(), HasSubstr("gzip stream is truncated (unexpected end of file) after"));
  std::string bad = whole;
  bad[bad.size() - 6] ^= 1;  // its checksum
  write(bad);
  EXPECT_THAT(read_error(), HasSubstr("gzip stream is corrupt"));
}

TEST_F(IdxFile, GzipOfATruncatedFile) {
  write_gzip(kGood.substr(0, 14));
  EXPECT_THAT(read_error(), HasSubstr("18 bytes expected, 14 found"));
  write_gzip(kGood + "x");
  EXPECT_THAT(read_error(), HasSubstr("it has data after"));
  // 30 bytes promise 16 GiB.
  write_gzip(idx(14, {0x7fffffffu}, "1234"));
  EXPECT_THAT(read_error(), HasSubstr("17179869184 bytes expected"));
}

}  // namespace
}  // namespace mantissa::idx_test
