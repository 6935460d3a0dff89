// The codes of a weight that linear_fp8() keeps for the micro-batches of a step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/fp8/linear_fp8.h"
#include "mantissa/fp8/linear_test_support_internal.h"
#include "mantissa/fp8/test_support_internal.h"
#include "mantissa/optim/fused_adam.h"

namespace mantissa::kept_codes_test {
namespace {

using namespace fp8;
using test::same_bits;
using testing::HasSubstr;

TEST(LinearFp8KeptCodes, F8_28_ChangedWeightsAreNotUsedByMistake) {
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({4, 16}), w = torch::randn({8, 16});
  const auto state = state_of(Float8CurrentScaling{});
  EXPECT_THAT(error_of([&] { linear_fp8(x, w, {}, state, false); }), HasSubstr("no call with true has kept"));
  const at::Tensor y = linear_fp8(x, w, {}, state, true);
  EXPECT_TRUE(same_bits(linear_fp8(x, w, {}, state, false), y));
  w.add_(1);
  EXPECT_THAT(error_of([&] { linear_fp8(x, w, {}, state, false); }),
              HasSubstr("the weight has changed since"));
  const at::Tensor changed = linear_fp8(x, w, {}, state);
  EXPECT_FALSE(same_bits(changed, y));
  EXPECT_TRUE(same_bits(linear_fp8(x, w, {}, state, true), changed));
}

// Each of these leaves the version counter of the weight, or its address, as it was.
TEST(LinearFp8KeptCodes, F8_28_ChangesThatNoVersionCounts) {
  torch::manual_seed(10);
  const at::Tensor x = torch::randn({4, 16});
  const auto expect_refused = [&](const at::Tensor& weight, const std::shared_ptr<Fp8LinearState>& state,
                                  const char* what) {
    EXPECT_THAT(error_of([&] { linear_fp8(x, weight, {}, state, false); }),
                HasSubstr("the weight has changed since"))
        << what;
  };
  const auto expect_refused_after = [&](const auto& optimizer_of, const char* what) {
    const at::Tensor weight = torch::randn({8, 16}).set_requires_grad(true);
    const auto optimizer = optimizer_of(std::vector<at::Tensor>{weight});
    const auto state = state_of(Float8CurrentScaling{});
    linear_fp8(x, weight, {}, state, true).sum().backward();
    optimizer->step();
    expect_refused(weight, state, what);
    const at::Tensor y = linear_fp8(x, weight, {}, state, true);
    EXPECT_TRUE(same_bits(linear_fp8(x, weight, {}, state, false), y)) << what;
  };
  expect_refused_after(
      [](const std::vector<at::Tensor>& weights) {
        return std::make_unique<torch::optim::SGD>(weights, torch::optim::SGDOptions(1));
      },
      "SGD");
  expect_refused_after(
      [](const std::vector<at::Tensor>& weights) {
        return std::make_unique<FusedAdamW>(weights, AdamWOptions(1));
      },
      "FusedAdamW");

  const auto state = state_of(Float8CurrentScaling{});
  alignas(64) static float memory[16 * 16] = {};
  const auto weight_there = [] { return torch::from_blob(memory, {16, 16}); };
  weight_there().copy_(torch::randn({16, 16}));
  linear_fp8(x, weight_there(), {}, state, true);
  expect_refused(weight_there().t(), state, "a transposed weight");
  expect_refused(weight_there().narrow(0, 0, 8), state, "a part");
  EXPECT_EQ(linear_fp8(x, weight_there().clone(), {}, state, false).size(1), 16) << "equal values";
  memory[5] += 1;
  expect_refused(weight_there(), state, "another tensor at the address");
}

TEST(LinearFp8KeptCodes, F8_28_CodesAreKeptInInferenceMode) {
  torch::manual_seed(11);
  const at::Tensor w = torch::randn({8, 16}), dy = torch::randn({4, 8});
  for (const auto& [name, recipe] : recipes()) {
    const auto state = state_of(recipe);
    const at::Tensor x = torch::randn({4, 16});
    {
      const c10::InferenceMode inference;
      const at::Tensor copy = w.clone(), y = linear_fp8(x, copy, {}, state, true);
      EXPECT_TRUE(same_bits(linear_fp8(x, copy, {}, state, false), y)) << name;
    }
    const Pass got = pass(x, w, {}, dy, state, false), want = pass(x, w, {}, dy, state_of(recipe));
    EXPECT_TRUE(same_bits(got.y, want.y)) << name;
    EXPECT_TRUE(same_bits(got.dx, want.dx)) << name;
    EXPECT_TRUE(same_bits(got.dw, want.dw)) << name;
  }
}

TEST(LinearFp8KeptCodes, F8_29_KeptCodesLeaveTheWeightsHistory) {
  const at::Tensor x = torch::ones({4, 16}), w = torch::full({8, 16}, 2.0F);
  const DelayedScaling recipe = {.amax_history_len = 3};
  const auto state = state_of(recipe);
  linear_fp8(x, w, {}, state, true);
  state->update_scales();
  const at::Tensor history = state->forward.amax_history.clone();
  linear_fp8(x * 5, w, {}, state, false);
  state->update_scales();
  EXPECT_TRUE(same_bits(state->forward.amax_history.select(1, 1), history.select(1, 1)));
  EXPECT_EQ(state->forward.amax_history[2][0].item<float>(), 5);
}

TEST(LinearFp8KeptCodes, F8_30_MicroBatchesAddUp) {
  torch::manual_seed(5);
  const at::Tensor w = torch::randn({8, 16}).set_requires_grad(true);
  const auto state = state_of(Float8CurrentScaling{});
  at::Tensor sum = torch::zeros({8, 16});
  for (int i = 0; i < 4; ++i) {
    const at::Tensor x = torch::randn({6, 16}), dy = torch::randn({6, 8});
    linear_fp8(x, w, {}, state, i == 0).backward(dy);
    sum += pass(x, w, {}, dy, state_of(Float8CurrentScaling{})).dw;
  }
  EXPECT_TRUE(at::allclose(w.grad(), sum, 1e-6, 1e-6));
}

}  // namespace
}  // namespace mantissa::kept_codes_test
