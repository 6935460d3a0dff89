#include "mantissa/data/cifar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/data/images/test_support_internal.h"

namespace mantissa::cifar_test {
namespace {

using testing::HasSubstr;

/// Returns records with these labels, each of a byte; pixel i of record r has the value (i + r) mod 251.
std::string records(const std::vector<std::string>& labels) {
  std::string bytes;
  for (size_t r = 0; r < labels.size(); ++r) {
    bytes += labels[r];
    for (size_t i = 0; i < 3072; ++i) bytes += static_cast<char>((i + r) % 251);
  }
  return bytes;
}

const std::string kZero(1, '\0');

TEST(Cifar, ARecordIsALabelAndThreeChannels) {
  const CifarRecords ten = parse_cifar(records({"\7", kZero, "\11"}), CifarKind::kCifar10, "f");
  EXPECT_TRUE(ten.labels.equal(torch::tensor({7, 0, 9})));
  EXPECT_TRUE(ten.images.sizes() == at::IntArrayRef({3, 3, 32, 32}));
  EXPECT_EQ(ten.images[2][1][5][6].item<uint8_t>(), (1024 + 5 * 32 + 6 + 2) % 251);
  const CifarRecords hundred = parse_cifar(records({"\3\x63", "\4" + kZero}), CifarKind::kCifar100, "f");
  EXPECT_TRUE(hundred.labels.equal(torch::tensor({99, 0}))) << "the fine ones";
  EXPECT_EQ(hundred.images[1][0][0][0].item<uint8_t>(), 1);
}

TEST(Cifar, WhatIsNoRecordIsRefused) {
  const std::string one = records({"\1"});
  for (const size_t size : {size_t{0}, size_t{1}, one.size() - 1})
    EXPECT_THAT(error_of([&] { parse_cifar(one.substr(0, size), CifarKind::kCifar10, "f.bin"); }),
                HasSubstr("'f.bin' has " + std::to_string(size) + " bytes"));
  EXPECT_THAT(error_of([&] {
                parse_cifar(records({"\1", "\12"}), CifarKind::kCifar10, "f.bin");
              }),
              HasSubstr("image 1 has the label 10, and there are 10 classes"));
  EXPECT_THAT(error_of([&] { parse_cifar(records({"\1\x64"}), CifarKind::kCifar100, "f"); }),
              HasSubstr("the label 100"));
}

class CifarFolder : public InFolder {};

TEST_F(CifarFolder, HasAsManyPartsAsThereAre) {
  write_image_file(folder_ / "data_batch_1.bin", records({"\1", "\2"}));
  Cifar cifar = load_cifar(folder_, CifarKind::kCifar10);
  EXPECT_EQ(cifar.train->size(), 2);
  EXPECT_FALSE(cifar.val);
  write_image_file(folder_ / "data_batch_5.bin", records({"\3"}));
  write_image_file(folder_ / "test_batch.bin", records({"\4"}));
  cifar = load_cifar(folder_, CifarKind::kCifar10);
  EXPECT_TRUE(cifar.train->target().equal(torch::tensor({1, 2, 3})));
  EXPECT_EQ(cifar.classes, 10);
  const at::Tensor indices = torch::zeros({50}, at::kLong);
  const at::Tensor still = cifar.val->get_batch(indices).data, moved = cifar.train->get_batch(indices).data;
  EXPECT_TRUE(still.eq(still[0]).all().item<bool>());
  EXPECT_FALSE(moved.eq(moved[0]).all().item<bool>());
  EXPECT_EQ(still[0][2][0][0].item<float>(), (static_cast<float>(2048 % 251) / 255.0F - 0.4465F) / 0.2616F);

  write_image_file(folder_ / "train.bin", records({"\1\x63"}));
  EXPECT_EQ(load_cifar(folder_, CifarKind::kCifar100).classes, 100);
}

TEST_F(CifarFolder, AnErrorNamesTheFile) {
  EXPECT_THAT(error_of([&] { load_cifar(folder_, CifarKind::kCifar10); }),
              HasSubstr("has no data_batch_1.bin"));
  write_image_file(folder_ / "data_batch_3.bin", "short");
  EXPECT_THAT(error_of([&] { load_cifar(folder_, CifarKind::kCifar10); }),
              HasSubstr("data_batch_3.bin' has 5"));
}

}  // namespace
}  // namespace mantissa::cifar_test
