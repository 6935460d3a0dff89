#include "mantissa/data/images/decoder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <jpeglib.h>  // after cstdio, which it needs
#include <string>
#include <vector>
#include <zlib.h>

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

/// Returns a grey progressive JPEG image, each of whose coefficients has scans of its own: `bits` of them.
std::string jpeg_of_many_scans(int bits) {
  std::vector<jpeg_scan_info> scans;
  for (int coefficient = 0; coefficient < 64; ++coefficient)
    for (int bit = bits - 1; bit >= 0; --bit)
      scans.push_back({1, {0}, coefficient, coefficient, bit == bits - 1 ? 0 : bit + 1, bit});
  jpeg_compress_struct codec{};
  jpeg_error_mgr errors{};
  codec.err = jpeg_std_error(&errors);
  jpeg_create_compress(&codec);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&codec, &bytes, &size);
  codec.image_width = codec.image_height = 16;
  codec.input_components = 1;
  codec.in_color_space = JCS_GRAYSCALE;
  jpeg_set_defaults(&codec);
  codec.scan_info = scans.data();
  codec.num_scans = static_cast<int>(scans.size());
  jpeg_start_compress(&codec, TRUE);
  for (int row = 0; row < 16; ++row) {
    std::vector<uint8_t> pixels(16, static_cast<uint8_t>(row * 15));
    JSAMPROW rows[] = {pixels.data()};
    jpeg_write_scanlines(&codec, rows, 1);
  }
  jpeg_finish_compress(&codec);
  std::string image(reinterpret_cast<const char*>(bytes), size);
  jpeg_destroy_compress(&codec);
  std::free(bytes);
  return image;
}

TEST(OpenImage, AJpegOfThousandsOfPassesIsRefused) {
  EXPECT_THAT(error_with(jpeg_of_many_scans(8)), HasSubstr("it has more than 500 scans"));
  const std::string image = jpeg_of_many_scans(7);  // 448
  const auto decoder = open_image(image, "a.jpg");
  Image pixels;
  decoder->decode({0, 0, 16, 16}, 1, pixels);
  EXPECT_NEAR(pixels.row(9)[5], 9 * 15, 4);
}

std::string big_endian(size_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xff);
  return bytes;
}
std::string png_chunk(const std::string& name, const std::string& content) {
  const std::string checked = name + content;
  return big_endian(content.size()) + checked +
         big_endian(
             crc32(0, reinterpret_cast<const Bytef*>(checked.data()), static_cast<uInt>(checked.size())));
}
std::string deflated(const std::string& bytes) {
  std::string out(compressBound(bytes.size()), '\0');
  uLongf size = out.size();
  compress(reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(bytes.data()),
           bytes.size());
  return out.substr(0, size);
}

TEST(OpenImage, TextsInAPngChangeNoPixel) {
  const std::string text =
      png_chunk("zTXt", std::string("Comment\0\0", 9) + deflated(std::string(1 << 24, 'x')));
  const std::string bytes =
      "\x89PNG\r\n\x1A\n" +
      png_chunk("IHDR", big_endian(2) + big_endian(1) + std::string("\x08\x02\0\0\0", 5)) + text +
      png_chunk("IDAT", deflated(std::string("\0\1\2\3\4\5\6", 7))) + text + png_chunk("IEND", "");
  const auto decoder = open_image(bytes, "a.png");
  Image pixels;
  decoder->decode({0, 0, 1, 2}, 1, pixels);
  EXPECT_EQ(bytes_of(pixels), "\1\2\3\4\5\6");
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
