#include "mantissa/data/images/decoder.h"

#include <algorithm>
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/data/images/codecs_internal.h"
#include "mantissa/data/images/test_support_internal.h"

namespace mantissa::decoder_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string error_with(std::string_view bytes) {
  return error_of<c10::ValueError>([&] {
    const auto decoder = open_image(bytes, "a.jpg");
    Image image;
    decoder->decode({0, 0, decoder->height(), decoder->width()}, 1, image);
  });
}

TEST(OpenImage, SaysWhichFileIsNoImage) {
  EXPECT_THAT(error_with("plain text"), AllOf(HasSubstr("a.jpg"), HasSubstr("neither JPEG nor PNG")));
  EXPECT_THAT(error_with(""), HasSubstr("a.jpg: the file is empty"));
  EXPECT_THAT(error_with("\x89PNG\r\n\x1A\n"), HasSubstr("a.jpg: the PNG data are truncated or corrupt"));
}

TEST(OpenImage, EveryTruncationOfAJpegIsRefused) {
  const std::string whole = encode_jpeg(gradient_image(24, 17), 90, "a");
  for (size_t size = 0; size + 2 < whole.size(); ++size)
    EXPECT_THAT(error_with(std::string_view(whole).substr(0, size)), HasSubstr("a.jpg: ")) << size;
}

TEST(OpenImage, EveryTruncationOfRawPixelsIsRefused) {
  const std::string whole = encode_raw(gradient_image(2, 3));
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_THAT(error_with(std::string_view(whole).substr(0, size)), HasSubstr("a.jpg: ")) << size;
  EXPECT_THAT(error_with(whole + "x"), HasSubstr("takes 34 bytes, but it has 35"));
}

TEST(OpenImage, AHeaderCannotTakeAllMemory) {
  std::string bytes = encode_raw(gradient_image(1, 1));
  std::fill_n(bytes.begin() + 8, 8, '\xff');
  EXPECT_THAT(error_with(bytes), HasSubstr("at most 178956970 are read"));
  std::fill_n(bytes.begin() + 8, 8, '\0');
  EXPECT_THAT(error_with(bytes), HasSubstr("the image has no pixels"));
}

TEST(OpenImage, DecodesACropOfRawPixels) {
  const Image image = gradient_image(5, 7);
  const std::string bytes = encode_raw(image);
  Image part;
  open_image(bytes, "a")->decode({1, 2, 3, 4}, 8, part);
  for (int64_t y = 0; y < 3; ++y)
    EXPECT_TRUE(std::equal(part.row(y), part.row(y) + 12, image.row(y + 1) + 6)) << y;
}

TEST(OpenImage, JpegKeepsASmoothImageAndShrinksIt) {
  const Image image = gradient_image(64, 96);
  const std::string bytes = encode_jpeg(image, 95, "a");
  for (const int64_t most : {1, 2, 3, 4, 8, 100}) {
    const auto decoder = open_image(bytes, "a");
    Image part;
    const DecodedPart made = decoder->decode({0, 0, 64, 96}, most, part);
    EXPECT_EQ(made.shrink, most == 3 ? 2 : std::min<int64_t>(most, 8));
    ASSERT_EQ(part.height(), 64 / made.shrink);
    ASSERT_EQ(part.width(), 96 / made.shrink);
    for (int64_t y = 0; y < part.height(); ++y)
      for (int64_t x = 0; x < part.width(); ++x)
        EXPECT_NEAR(part.row(y)[x * 3 + 1], image.row(0)[(x * made.shrink + made.shrink / 2) * 3 + 1], 12);
  }
}

}  // namespace
}  // namespace mantissa::decoder_test
