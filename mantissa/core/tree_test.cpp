#include "mantissa/core/tree.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

namespace mantissa::tree_test {
namespace {

struct Sample {
  at::Tensor image;
  std::map<std::string, at::Tensor> extras;
  std::string name;
  auto tensors() { return std::tie(image, extras); }
};

at::Tensor doubled(const at::Tensor& t) { return t * 2; }

TEST(MapTensors, IN07_WalksNestedContainersAndStructs) {
  const Sample sample{torch::ones(2), {{"mask", torch::ones(3)}}, "first"};
  const auto tree = std::make_tuple(std::vector<Sample>{sample}, std::make_pair(7, torch::ones(1)),
                                    std::optional<at::Tensor>(torch::ones(4)), std::string("label"));
  const auto out = map_tensors(tree, doubled);
  const Sample& mapped = std::get<0>(out)[0];
  EXPECT_EQ(mapped.image.sum().item<int>(), 4);
  EXPECT_EQ(mapped.extras.at("mask").sum().item<int>(), 6);
  EXPECT_EQ(mapped.name, "first");
  EXPECT_EQ(std::get<1>(out).first, 7);
  EXPECT_EQ(std::get<1>(out).second.item<int>(), 2);
  EXPECT_EQ(std::get<2>(out)->sum().item<int>(), 8);
  EXPECT_EQ(std::get<3>(out), "label");
}

TEST(MapTensors, IN09_LeavesTheCallersContainersAlone) {
  std::vector<at::Tensor> tree{torch::ones(2)};
  map_tensors(tree, [](const at::Tensor& t) { return t.to(at::kHalf); });
  EXPECT_EQ(tree[0].scalar_type(), at::kFloat);
  Sample sample{torch::ones(2), {{"mask", torch::ones(3)}}, ""};
  map_tensors(sample, [](const at::Tensor& t) { return t.to(at::kHalf); });
  EXPECT_EQ(sample.extras.at("mask").scalar_type(), at::kFloat);
}

TEST(MapTensors, SkipsWhatIsAbsent) {
  EXPECT_FALSE(map_tensors(at::Tensor(), doubled).defined());
  EXPECT_FALSE(map_tensors(std::optional<at::Tensor>(), doubled).has_value());
  EXPECT_TRUE(map_tensors(std::vector<at::Tensor>(), doubled).empty());
}

}  // namespace
}  // namespace mantissa::tree_test
