#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/precision/layers_internal.h"
#include "mantissa/precision/registry.h"
#include "mantissa/weights/linear_weights.h"
#include "mantissa/weights/marked_weight.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::layers_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("table", table);
    register_module("conv", conv);
    register_module("body", body);
    register_module("lm_head", lm_head);
    register_module("lm_head2", lm_head2);
  }
  torch::nn::Embedding table{11, 16};
  torch::nn::Conv1d conv{torch::nn::Conv1dOptions(16, 16, 3)};
  torch::nn::Sequential body{torch::nn::Linear(16, 32), torch::nn::ReLU(), torch::nn::Linear(32, 16)};
  torch::nn::Linear lm_head{16, 4}, lm_head2{16, 4};
};
TORCH_MODULE(Net);

std::vector<std::string> names_of(const torch::nn::Module& module, const LayerChoice& choice = {}) {
  std::vector<std::string> names;
  for (const Layer& layer : layers_of(module, choice)) names.push_back(layer.name);
  return names;
}

TEST(Layers, LinearLayersAreChosenAndOthersOnRequest) {
  Net net;
  EXPECT_THAT(names_of(*net),
              ElementsAre("body.0.weight", "body.2.weight", "lm_head.weight", "lm_head2.weight"));
  EXPECT_THAT(names_of(*net, {.embeddings = true, .ignore_modules = {"body", "lm_head"}}),
              ElementsAre("table.weight"));
  EXPECT_THAT(names_of(*net, {.convolutions = true, .ignore_modules = {"body", "lm_head"}}),
              ElementsAre("conv.weight"));
  EXPECT_THAT(names_of(*net->lm_head), ElementsAre("weight")) << "a module that is a layer itself";
  EXPECT_FALSE(has_layers(*net->table, {}));
  EXPECT_TRUE(has_layers(*net, {.ignore_modules = {"body", "lm_head"}})) << "ignored ones count";
}

// A module of the user's own with two linear layers' weights.
struct PairImpl : torch::nn::Module, HasLinearWeights {
  PairImpl() {
    register_parameter("up", torch::randn({32, 16}));
    register_parameter("down", torch::randn({16, 32}));
    register_parameter("shift", torch::zeros({16}));
  }
  std::vector<std::string> linear_weights() const override { return {"up", "down"}; }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto own = named_parameters();
    return torch::linear(torch::linear(x, own["up"]).relu(), own["down"]) + own["shift"];
  }
};
TORCH_MODULE(Pair);

TEST(Layers, AModuleWithLinearWeightsOfItsOwnIsALayer) {
  torch::nn::Sequential net(torch::nn::Linear(8, 16), Pair(), torch::nn::Linear(16, 4));
  EXPECT_THAT(names_of(*net), ElementsAre("0.weight", "1.up", "1.down", "2.weight"));
  EXPECT_THAT(names_of(*net, {.ignore_modules = {"1"}}), ElementsAre("0.weight", "2.weight"));
  EXPECT_THAT(names_of(*net, {.ignore_modules = {"1.up", "0"}}), ElementsAre("1.down", "2.weight"));
  EXPECT_THAT(unmatched_names(*net, {"1.up", "1.sideways"}), ElementsAre("1.sideways"));
  Pair pair;
  EXPECT_TRUE(has_layers(*pair, {}));
  const torch::Tensor x = torch::randn({3, 16});
  const torch::Tensor exact = pair->forward(x);
  make_precision("nf4", at::kCPU)->convert_module(*pair);
  EXPECT_TRUE(is_packed(pair->named_parameters()["up"]));
  EXPECT_FALSE(is_packed(pair->named_parameters()["shift"]));
  EXPECT_LT((pair->forward(x.to(at::kBFloat16)).to(at::kFloat) - exact).norm().item<float>(),
            0.3 * exact.norm().item<float>());
}

TEST(Layers, ATiedWeightIsChosenOnceAndNotIfOneOfItsLayersIsIgnored) {
  Net net;
  net->lm_head2->weight = net->lm_head->weight;
  EXPECT_THAT(names_of(*net, {.ignore_modules = {"body"}}), ElementsAre("lm_head.weight"));
  EXPECT_THAT(names_of(*net, {.ignore_modules = {"body", "lm_head2"}}), IsEmpty());
}

TEST(Layers, BothKindsOfModesChooseTheSameWeights) {
  const PrecisionOptions options{.ignore_modules = {"body.0", "lm_head2"}};
  Net packed, marked;
  for (Net* const net : {&packed, &marked}) (*net)->lm_head2->weight = (*net)->lm_head->weight;
  make_precision("nf4", at::kCPU, options)->convert_module(*packed);
  make_precision("int8-training", at::kCPU, options)->convert_module(*marked);
  for (const auto& item : packed->named_parameters())
    EXPECT_EQ(is_packed(item.value()), is_marked(marked->named_parameters()[item.key()])) << item.key();
  EXPECT_TRUE(is_packed(packed->named_parameters()["body.2.weight"]));
  EXPECT_FALSE(is_packed(packed->lm_head->weight)) << "an ignored layer computes with it";
}

TEST(Layers, NamesThatMatchNothingAreWarnedOf) {
  Net net;
  EXPECT_THAT(unmatched_names(*net, {"body.2", "lm_haed", "lm"}), ElementsAre("lm_haed"));
  Warnings warnings;
  warn_about_unmatched_names(*net, {"body.2", "lm_haed", "lm"}, "here");
  EXPECT_THAT(warnings.texts,
              ElementsAre(AllOf(HasSubstr("here: ignore_modules 'lm_haed' matches no submodule"),
                                HasSubstr("'lm_head'"))));
}

TEST(Layers, TheNameOfAModuleWithoutParametersMatches) {
  Net net;
  EXPECT_THAT(unmatched_names(*net, {"body.1", "body.3"}), ElementsAre("body.3"));
}

TEST(Layers, AWeightThatAutogradComputedIsRefused) {
  const at::Tensor leaf = at::ones({2, 2}).requires_grad_();
  EXPECT_NO_THROW(check_is_leaf({"fc.weight", leaf}, "here"));
  EXPECT_THAT(error_of([&] {
                check_is_leaf({"fc.weight", leaf * 2}, "here");
              }),
              AllOf(HasSubstr("here: autograd computed 'fc.weight'"), HasSubstr("ignore_modules")));
}

}  // namespace
}  // namespace mantissa::layers_test
