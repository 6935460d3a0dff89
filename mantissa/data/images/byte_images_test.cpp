#include "mantissa/data/images/byte_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/data/loader.h"

namespace mantissa::byte_images_test {
namespace {

using testing::HasSubstr;

at::Tensor numbered(at::IntArrayRef sizes) {
  return (torch::arange(c10::multiply_integers(sizes)) % 255 + 1).to(at::kByte).view(sizes);
}

TEST(ByteImages, AreNormalizedAsInTorchvision) {
  const at::Tensor images = numbered({3, 2, 4, 5});
  const std::vector<float> mean = {0.3F, 0.6F}, std = {0.2F, 0.7F};
  const ByteImageDataset dataset(images, torch::tensor({7, 8, 9}), {.mean = mean, .std = std});
  const Batch batch = dataset.get_batch(torch::tensor({2, 0}));
  const at::Tensor value = images.index_select(0, torch::tensor({2, 0})).to(at::kFloat).div(255),
                   want = (value - torch::tensor({0.3F, 0.6F}).view({2, 1, 1})) /
                          torch::tensor({0.2F, 0.7F}).view({2, 1, 1});
  EXPECT_TRUE(batch.data.equal(want));
  EXPECT_TRUE(batch.target.equal(torch::tensor({9, 7})));
  const ByteImageDataset plain(images, torch::zeros({3}));
  EXPECT_TRUE(plain.get_batch(torch::tensor({1})).data.equal(images.narrow(0, 1, 1).to(at::kFloat).div(255)));
  EXPECT_EQ(plain.get_batch(torch::empty({0}, at::kLong)).data.size(0), 0);
}

TEST(ByteImages, AreMovedAndMirrored) {
  const at::Tensor image = numbered({1, 2, 3, 4});
  const at::Tensor padded = torch::constant_pad_nd(image, {1, 1, 1, 1}).to(at::kFloat).div(255);
  const ByteImageDataset dataset(image, torch::zeros({1}), {.padding = 1, .flip_probability = 0.5});
  const at::Tensor many = dataset.get_batch(torch::zeros({600}, at::kLong)).data;
  std::set<int> found;
  for (int64_t i = 0; i < many.size(0); ++i) {
    int matches = 0;
    for (int down = 0; down < 3; ++down)
      for (int right = 0; right < 3; ++right)
        for (const bool mirrors : {false, true}) {
          at::Tensor want = padded[0].narrow(1, down, 3).narrow(2, right, 4);
          if (mirrors) want = want.flip(2);
          if (!many[i].equal(want)) continue;
          ++matches;
          found.insert(down * 6 + right * 2 + (mirrors ? 1 : 0));
        }
    EXPECT_EQ(matches, 1) << i;
  }
  EXPECT_EQ(found.size(), 18) << "all of them";
}

TEST(ByteImages, EqualSeedsGiveEqualBatchesWhateverTheWorkers) {
  const auto dataset = std::make_shared<ByteImageDataset>(
      numbered({20, 1, 6, 6}), torch::arange(20), ByteImageOptions{.padding = 2, .flip_probability = 0.5});
  DataLoader one(dataset, {.batch_size = 3, .shuffle = true, .seed = 5}),
      two(dataset, {.batch_size = 3, .shuffle = true, .seed = 5, .num_workers = 2}),
      in_order(dataset, {.batch_size = 3, .seed = 5}), other(dataset, {.batch_size = 3, .seed = 6});
  EXPECT_FALSE(in_order.next()->data.equal(other.next()->data)) << "the same images, changed otherwise";
  at::Tensor first;
  while (const auto batch = one.next()) {
    if (!first.defined()) first = batch->data.clone();
    EXPECT_TRUE(two.next()->data.equal(batch->data));
  }
  one.set_epoch(1);
  EXPECT_FALSE(one.next()->data.equal(first));
}

TEST(ByteImages, WhatDoesNotFitIsRefused) {
  const at::Tensor images = numbered({2, 3, 4, 4}), target = torch::zeros({2});
  const auto error = [&](const at::Tensor& x, const at::Tensor& y, const ByteImageOptions& options = {}) {
    return error_of([&] { ByteImageDataset(x, y, options); });
  };
  EXPECT_THAT(error(images.to(at::kFloat), target), HasSubstr("not Float [2, 3, 4, 4]"));
  EXPECT_THAT(error(images[0], target), HasSubstr("uint8 [n, channels"));
  EXPECT_THAT(error(images.narrow(0, 0, 0), target), HasSubstr("uint8 [n, channels"));
  EXPECT_THAT(error({}, target), HasSubstr("not undefined"));
  EXPECT_THAT(error(images, torch::zeros({3})), HasSubstr("2 images have 3 targets"));
  EXPECT_THAT(error(images, {}), HasSubstr("2 images have 0 targets"));
  EXPECT_THAT(error(images, target, {.mean = {1, 2}}), HasSubstr("2 numbers for 3 channels"));
  EXPECT_THAT(error(images, target, {.std = {1, 0, 1}}), HasSubstr("a std is 0"));
  EXPECT_THAT(error(images, target, {.padding = 4}), HasSubstr("a padding of 4"));
  EXPECT_THAT(error(images, target, {.padding = -1}), HasSubstr("a padding of -1"));
  EXPECT_THAT(error(images, target, {.flip_probability = 1.5}), HasSubstr("a probability of 1.5"));
  EXPECT_THROW(ByteImageDataset(images, target).get_batch(torch::tensor({2})), c10::ValueError);
}

}  // namespace
}  // namespace mantissa::byte_images_test
