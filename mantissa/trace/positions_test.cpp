// One fault at every position of a network, in every mode.
#include <algorithm>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <string>

#include <torch/torch.h>

#include "mantissa/trace/test_nets_internal.h"
#include "mantissa/trace/trace_nonfinite.h"

namespace mantissa::nonfinite_positions_test {
namespace {

using namespace nonfinite_test;
using testing::HasSubstr;

struct Position {
  const char *place, *after, *before;
};
constexpr Position kTransformerPositions[] = {{"embedding", "embedding", "norm1"},
                                              {"norm1", "norm1", "qkv"},
                                              {"qkv", "qkv", "projection"},
                                              {"scores", "qkv", "projection"},
                                              {"softmax", "qkv", "projection"},
                                              {"value", "qkv", "projection"},
                                              {"projection", "projection", "norm2"},
                                              {"residual", "projection", "norm2"},
                                              {"norm2", "norm2", "mlp.fc1"},
                                              {"fc1", "mlp.fc1", "mlp.fc2"},
                                              {"gelu", "mlp.fc1", "mlp.fc2"},
                                              {"mlp", "mlp.fc2", "head"},
                                              {"head", "head", ""},
                                              {"loss", "head", ""}};
constexpr Position kConvnetPositions[] = {{"conv", "conv", "norm"}, {"norm", "norm", "head"},
                                          {"relu", "norm", "head"}, {"pool", "norm", "head"},
                                          {"head", "head", ""},     {"loss", "head", ""}};

class InEveryMode : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(TraceNonFinite, InEveryMode,
                         testing::Values("32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

template <typename Net, size_t N>
void expect_found_at(const Position (&positions)[N], const std::string& mode, const Fault& fault,
                     const std::function<void(const NonFiniteOrigin&)>& check) {
  EXPECT_FALSE(trace(*std::make_unique<Net>(), mode)) << "without a fault";
  for (const auto& [place, after, before] : positions) {
    SCOPED_TRACE(place);
    Net net;
    net.faults[place] = fault;
    const auto origin = trace(net, mode);
    ASSERT_TRUE(origin);
    SCOPED_TRACE(origin->to_string());
    check(*origin);
    EXPECT_FALSE(origin->inside_module);
    EXPECT_EQ(origin->module, after);
    EXPECT_EQ(origin->next_module, before);
    EXPECT_EQ(origin->cause, NonFiniteCause::kDomain);
    EXPECT_THAT(origin->cure, HasSubstr("epsilon"));
  }
}

TEST_P(InEveryMode, NamesALogOfANegativeValueWhereverItStands) {
  // Not log(0), because a ReLU would turn -inf into 0.
  const Fault fault = [](const at::Tensor& x) { return torch::log(x * 0 - 1); };
  const auto check = [](const NonFiniteOrigin& origin) {
    EXPECT_EQ(origin.op, "aten::log");
    EXPECT_FALSE(origin.backward);
    EXPECT_EQ(origin.tensor, "output 0");
    EXPECT_GT(origin.result.non_finite, 0);
    ASSERT_EQ(origin.inputs.size(), 1);
    EXPECT_EQ(origin.inputs[0].max_abs, 1);
    EXPECT_EQ(origin.finite_in_float32, false);
  };
  expect_found_at<Transformer>(kTransformerPositions, GetParam(), fault, check);
  expect_found_at<Convnet>(kConvnetPositions, GetParam(), fault, check);
}

TEST(TraceNonFinite, NamesAnOperationBeforeTheFirstModule) {
  Convnet net;
  net.faults["images"] = [](const at::Tensor& x) { return torch::log(x * 0 - 1); };
  const auto origin = trace(net);
  ASSERT_TRUE(origin);
  EXPECT_THAT(origin->to_string(), testing::StartsWith("forward: aten::log before conv made output 0"));
}

TEST_P(InEveryMode, NamesTheRootWhoseDerivativeAtZeroIsInfinite) {
  const Fault fault = [](const at::Tensor& x) { return x + torch::sqrt(x * 0); };
  const auto check = [](const NonFiniteOrigin& origin) {
    EXPECT_EQ(origin.op, "aten::div");
    EXPECT_TRUE(origin.backward);
    EXPECT_EQ(origin.forward_op, "aten::sqrt");
    EXPECT_THAT(origin.cure, HasSubstr("under the root"));
  };
  // The square root keeps negative zeros, so the forward pass is finite.
  expect_found_at<Transformer>(kTransformerPositions, GetParam(), fault, check);
  expect_found_at<Convnet>(kConvnetPositions, GetParam(), fault, check);
}

}  // namespace
}  // namespace mantissa::nonfinite_positions_test
