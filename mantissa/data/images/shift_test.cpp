#include "mantissa/data/images/shift.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <utility>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::shift_test {
namespace {

using testing::HasSubstr;

Batch shifted_batch(const at::Tensor& images, int64_t pixels, uint64_t seed) {
  return shift_images(pixels)({images, at::arange(images.size(0)), {}},
                              at::make_generator<at::CPUGeneratorImpl>(seed));
}

/// Returns the image with zeros around it, cut out so that it has moved down by `down` and right by `right`.
at::Tensor moved(const at::Tensor& image, int64_t pixels, int64_t down, int64_t right) {
  return at::constant_pad_nd(image, {pixels, pixels, pixels, pixels})
      .narrow(1, pixels - down, image.size(1))
      .narrow(2, pixels - right, image.size(2));
}

TEST(Shift, MovesEachImageByItself) {
  constexpr int64_t kPixels = 2;
  const at::Tensor images = at::rand({200, 3, 6, 7}, at::kFloat) + 1;
  const Batch batch = shifted_batch(images, kPixels, 1);
  EXPECT_TRUE(batch.target.equal(at::arange(200)));
  std::set<std::pair<int64_t, int64_t>> moves;
  for (int64_t i = 0; i < images.size(0); ++i)
    for (int64_t down = -kPixels; down <= kPixels; ++down)
      for (int64_t right = -kPixels; right <= kPixels; ++right)
        if (batch.data[i].equal(moved(images[i], kPixels, down, right))) moves.emplace(down, right);
  EXPECT_EQ(moves.size(), 25) << "each move was drawn";
}

TEST(Shift, TheSeedDecides) {
  const at::Tensor images = at::rand({8, 1, 5, 5}, at::kFloat);
  EXPECT_TRUE(shifted_batch(images, 1, 3).data.equal(shifted_batch(images, 1, 3).data));
  EXPECT_FALSE(shifted_batch(images, 1, 3).data.equal(shifted_batch(images, 1, 4).data));
}

TEST(Shift, LeavesTheGivenImagesAsTheyWere) {
  const at::Tensor images = at::rand({4, 1, 3, 3}, at::kFloat), before = images.clone();
  shifted_batch(images, 2, 1);
  EXPECT_TRUE(images.equal(before));
}

TEST(Shift, TakesAnyDtypeAndMemoryFormat) {
  const at::Tensor bytes = at::randint(1, 255, {16, 3, 4, 4}, at::kByte);
  const Batch batch = shifted_batch(bytes, 1, 5);
  EXPECT_EQ(batch.data.scalar_type(), at::kByte);
  EXPECT_TRUE(batch.data.equal(shifted_batch(bytes.contiguous(at::MemoryFormat::ChannelsLast), 1, 5).data));
  EXPECT_EQ(shifted_batch(at::ones({0, 1, 4, 4}), 1, 5).data.size(0), 0);
}

TEST(Shift, RefusesWhatItCannotMove) {
  EXPECT_THAT(error_of([] { shift_images(0); }), HasSubstr("0 pixels"));
  EXPECT_THAT(error_of([] { shifted_batch(at::ones({2, 3}), 1, 1); }), HasSubstr("a batch has data [2, 3]"));
  EXPECT_THAT(error_of([] { shifted_batch(at::ones({2, 1, 8, 3}), 3, 1); }), HasSubstr("8 x 3"));
}

}  // namespace
}  // namespace mantissa::shift_test
