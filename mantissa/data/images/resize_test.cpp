#include "mantissa/data/images/resize.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "mantissa/data/images/test_support_internal.h"

namespace mantissa::resize_test {
namespace {

ResizeGeometry whole(const Image& image, int64_t height, int64_t width) {
  return {{0, 0, static_cast<double>(image.height()), static_cast<double>(image.width())},
          height,
          width,
          {0, 0, height, width}};
}

TEST(Resize, AveragesWhereItReduces) {
  Image image(8, 8), out;
  for (int64_t y = 0; y < 8; ++y)
    for (int64_t i = 0; i < 24; ++i) image.row(y)[i] = (y + i / 3) % 2 == 0 ? 0 : 200;
  ImageResizer().resize(image, whole(image, 2, 2), out);
  for (int64_t i = 0; i < out.bytes(); ++i)
    EXPECT_NEAR(out.data()[i], 100, 2) << i;  // the edges cut the filter
}

TEST(Resize, KeepsAnImageOfTheSameSize) {
  const Image image = gradient_image(7, 11);
  Image out;
  ImageResizer().resize(image, whole(image, 7, 11), out);
  EXPECT_EQ(bytes_of(out), bytes_of(image));
}

TEST(Resize, AWindowIsAPartOfTheWhole) {
  const Image image = gradient_image(37, 53);
  ImageResizer resizer;
  for (const bool columns_first : {false, true})
    for (const auto& [height, width] : {std::pair<int64_t, int64_t>{20, 90}, {90, 20}, {10, 10}, {1, 1}}) {
      ResizeGeometry geometry = whole(image, height, width);
      geometry.columns_first = columns_first;
      Image all, part;
      resizer.resize(image, geometry, all);
      geometry.window = {height / 3, width / 4, height - height / 3, std::max<int64_t>(width / 2, 1)};
      resizer.resize(image, geometry, part);
      for (int64_t y = 0; y < part.height(); ++y)
        EXPECT_TRUE(std::equal(part.row(y), part.row(y) + part.row_bytes(),
                               all.row(y + height / 3) + 3 * (width / 4)));
    }
}

TEST(Resize, ReadsOnlyThePixelsThatItNames) {
  const PixelRange range = pixels_read(0, 100, 100, 10, 2, 3);
  EXPECT_EQ(range.first, 15);  // the middle of output 2 is 25, and the filter reaches 10 pixels to each side
  EXPECT_EQ(range.count, 40);
  EXPECT_EQ(pixels_read(0, 100, 100, 10, 0, 10).count, 100);
}

}  // namespace
}  // namespace mantissa::resize_test
