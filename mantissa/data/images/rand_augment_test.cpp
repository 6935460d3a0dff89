#include "mantissa/data/images/rand_augment.h"

#include <gtest/gtest.h>
#include <set>

#include "mantissa/data/images/test_support_internal.h"

namespace mantissa::rand_augment_test {
namespace {

TEST(RandAugment, DrawsEveryOperation) {
  const RandAugment one({.num_ops = 1});
  std::set<std::string> drawn, possible;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Image image = gradient_image(16, 16);
    ImageRandom random(seed);
    one.apply(image, random);
    drawn.insert(bytes_of(image));
  }
  for (size_t operation = 0; operation < RandAugment::operations().size(); ++operation)
    for (const bool negative : {false, true}) {
      Image image = gradient_image(16, 16);
      one.apply(operation, negative, image);
      possible.insert(bytes_of(image));
    }
  EXPECT_EQ(drawn, possible);
  EXPECT_EQ(RandAugment::operations().size(), 14U);
}

TEST(RandAugment, NoOperationsChangeNothing) {
  Image image = gradient_image(5, 5);
  ImageRandom random(3);
  RandAugment({.num_ops = 0}).apply(image, random);
  EXPECT_EQ(bytes_of(image), bytes_of(gradient_image(5, 5)));
}

}  // namespace
}  // namespace mantissa::rand_augment_test
