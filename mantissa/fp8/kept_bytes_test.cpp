// What autograd keeps of FP8 products between the two passes, in bytes that are allocated.

#include <gtest/gtest.h>
#include <memory>
#include <vector>

#include <c10/core/Allocator.h>
#include <torch/torch.h>

#include "mantissa/fp8/attention_fp8.h"
#include "mantissa/fp8/linear_fp8.h"

namespace mantissa::kept_bytes_test {
namespace {

/// Counts the bytes that this thread has allocated, minus those that it has freed.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override { now += size; }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t now = 0;
};

/// Returns the bytes that live as long as the graph of forward()'s result, without those of the result. The inputs that
/// forward() makes are gone.
template <class Forward>
int64_t kept_by(const Forward& forward) {
  const auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  const at::Tensor y = forward();
  return live->now - static_cast<int64_t>(y.nbytes());
}

/// A layer whose input is the result of another operation, which keeps nothing itself.
struct Layer {
  at::Tensor source, weight;
  std::shared_ptr<Fp8LinearState> state;

  int64_t kept() const {
    return kept_by([&] { return linear_fp8(source + 0, weight, {}, state); });
  }
};

constexpr int64_t kRows = 256, kIn = 384, kOut = 128;

Layer layer(const Fp8Recipe& recipe, at::ScalarType dtype = at::kBFloat16) {
  return {torch::randn({kRows, kIn}).to(dtype).requires_grad_(),
          torch::randn({kOut, kIn}).to(dtype).requires_grad_(), std::make_shared<Fp8LinearState>(recipe)};
}

struct Case {
  Fp8Recipe recipe;
  int64_t input, weight;  ///< bytes of a factor's codes and scales
};

std::vector<Case> cases() {
  constexpr int64_t kX = kRows * kIn, kW = kOut * kIn, kScale = sizeof(float);
  return {{DelayedScaling{.amax_history_len = 4}, kX + kScale, kW + kScale},
          {Float8CurrentScaling{}, kX + kScale, kW + kScale},
          {Float8BlockScaling{}, kX + kX / 128 * kScale, kW + kW / (128 * 128) * kScale},
          {MXFP8BlockScaling{}, kX + kX / 32, kW + kW / 32},
          {NVFP4BlockScaling{}, kX / 2 + kX / 16 + kScale, kW / 2 + kW / (16 * 16) + kScale}};
}

// So the input in 16 or 32 bits is not kept, and no factor is kept in two directions.
TEST(KeptBytes, ALayerKeepsTheCodesAndScalesOfEachFactorOnce) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    for (const Case& each : cases())
      EXPECT_EQ(layer(each.recipe, dtype).kept(), each.input + each.weight)
          << recipe_name(each.recipe) << " in " << dtype;
}

TEST(KeptBytes, ALayerKeepsOnlyWhatTheGradientsThatAreAskedForNeed) {
  for (const Case& each : cases()) {
    SCOPED_TRACE(recipe_name(each.recipe));
    Layer frozen = layer(each.recipe), first = layer(each.recipe);
    frozen.weight.requires_grad_(false);
    first.source.requires_grad_(false);
    EXPECT_EQ(frozen.kept(), each.weight);
    EXPECT_EQ(first.kept(), each.input);
    const torch::NoGradGuard no_grad;
    EXPECT_EQ(layer(each.recipe).kept(), 0);
  }
}

TEST(KeptBytes, AttentionKeepsCodesAndProbabilities) {
  constexpr int64_t kBatch = 2, kHeads = 4, kLength = 64, kChannels = 32;
  const at::Tensor source =
      torch::randn({kBatch, kHeads, kLength, kChannels}, at::kBFloat16).requires_grad_();
  const Fp8AttentionState state(Float8CurrentScaling{.fp8_dpa = true});
  const int64_t kept = kept_by(
      [&] { return attention_fp8({.query = source + 0, .key = source + 1, .value = source + 2}, state); });
  const int64_t factors = 3 * source.numel(), probabilities = kBatch * kHeads * kLength * kLength;
  EXPECT_EQ(kept, factors + 4 * static_cast<int64_t>(sizeof(float)) +
                      probabilities * (1 + static_cast<int64_t>(sizeof(float))));
}

}  // namespace
}  // namespace mantissa::kept_bytes_test
