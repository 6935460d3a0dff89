#include "mantissa/io/checksum.h"

#include <gtest/gtest.h>

namespace mantissa::checksum_test {
namespace {

// From xxHash's own test vectors (tests/sanity_test_vectors.h): seed 0, no bytes.
TEST(Checksum, OfNothing) { EXPECT_EQ(checksum_of(""), "99aa06d3014798d86001c324468d497f"); }

TEST(Checksum, PiecesMakeTheSameAsTheWhole) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text.push_back(static_cast<char>(i * 31 >> 3));
  Checksum pieces;
  size_t at = 0;
  for (const size_t n : {0, 1, 2, 15, 239, 240, 241, 1023, 65'536}) {
    pieces.update(text.data() + at, n);
    at += n;
    EXPECT_EQ(pieces.hex(), checksum_of(text.substr(0, at))) << at;
  }
}

TEST(Checksum, EveryByteCounts) {
  std::string text(300, 'x');
  const std::string want = checksum_of(text);
  for (char& c : text) {
    c ^= 1;
    EXPECT_NE(checksum_of(text), want);
    c ^= 1;
  }
  EXPECT_NE(checksum_of(text + '\0'), want);
}

}  // namespace
}  // namespace mantissa::checksum_test
