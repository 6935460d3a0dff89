#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "mantissa/fp8/linear_fp8.h"
#include "mantissa/fp8/recipe.h"
#include "mantissa/weights/attention.h"

namespace mantissa {

/// What an attention keeps between its products. In each of the two states, "input" and "weight" are the factors of the
/// product: queries and keys in `scores`, probabilities and values in `context`.
struct Fp8AttentionState {
  std::shared_ptr<Fp8LinearState> scores, context;

  /// Errors: those of check_attention_recipe() and check_recipe().
  explicit Fp8AttentionState(const Fp8Recipe& recipe, uint64_t seed = 0);
};

/// Throws c10::ValueError for a recipe with scales for blocks. Attention needs one scale for each tensor.
void check_attention_recipe(const Fp8Recipe& recipe);

/// Whether the recipe's fp8_dpa is set.
bool computes_attention(const Fp8Recipe& recipe);

/// Returns softmax(q k^T / sqrt(channels)) v with both products in FP8, with autograd: fake-quantized training on any CPU.
///
/// Shapes:     those of AttentionCall, also with no positions.
/// Numerics:   queries, keys, probabilities and values are quantized by the recipe in the format of forward tensors, and the
///             gradients of the scores and of the result in that of backward tensors. Each has one scale for all heads. Products
///             of codes are exact, and their sums are float32. Scale, mask, softmax and dropout follow in float32. The
///             result is rounded once to the dtype of the values, and gradients to the dtypes of their tensors. The derivative of
///             the softmax uses the probabilities before quantization. A row without a position to attend to is 0.
/// Evaluation: as that of Fp8TrainingRule.
/// Memory:     codes of the four factors, 1 byte for each value, and float32 probabilities [B, heads, S, T].
/// Errors:     c10::ValueError for shapes that do not fit, and for both a mask and is_causal; c10::TypeError and
///             c10::NotImplementedError as linear_fp8().
/// Source:     Transformer Engine's DotProductAttention with fp8_dpa. It also quantizes the result and the gradients that the
///             attention returns.
at::Tensor attention_fp8(const AttentionCall& call, const Fp8AttentionState& state);

/// The rule of an attention that is trained in FP8: attention_fp8() inside an enabled Fp8Autocast.
///
/// Steps:   whoever sets the rule calls update_scales() (linear_fp8.h) on both states after each step. The modes do.
/// Example: attention_fp8_test.cpp, Fp8AttentionRule.ComputesInsideRegions
class Fp8AttentionRule final : public AttentionRule {
 public:
  explicit Fp8AttentionRule(Fp8AttentionState state, bool belongs_to_mode = false);

  const Fp8AttentionState& state() const { return state_; }

  std::string description() const override { return "FP8 training"; }
  bool computes() const override;
  at::Tensor attend(const AttentionCall& call) const override;
  /// Returns a rule whose states begin with the values of this one's, or anew if it belongs to a mode.
  std::shared_ptr<const AttentionRule> for_copy() const override;
  bool belongs_to_mode() const override { return belongs_to_mode_; }

 private:
  Fp8AttentionState state_;
  bool belongs_to_mode_;
};

}  // namespace mantissa
