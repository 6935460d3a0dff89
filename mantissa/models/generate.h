#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/models/causal_model.h"
#include "mantissa/models/sampling.h"

namespace mantissa {

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  SamplingOptions sampling = {};
  /// Of a generator of its own; unset: numbers come from the global CPU generator.
  std::optional<uint64_t> seed = std::nullopt;
  /// A sequence ends with one of these; unset: the model's own. Empty: none does.
  std::optional<std::vector<int64_t>> stop_tokens = std::nullopt;
  /// When the context is full, the model forgets the older half of it, reads the newer half again and continues. If false, the
  /// text ends there.
  bool slide = false;
  /// Is called with each new token of every sequence, [B] of int64 on the CPU, as soon as it is chosen. The text ends
  /// there if it returns false.
  std::function<bool(const at::Tensor& tokens)> on_token = nullptr;
};

/// Why a text ended.
enum class GenerateEnd : uint8_t { kMaxNewTokens, kStopToken, kContext, kCaller };

/// "max_new_tokens", "stop_token", "context" or "caller".
const char* generate_end_name(GenerateEnd end);

struct Generated {
  /// The new tokens with the stop token, [B, N] of int64 on the CPU. A sequence that ended before the others is filled
  /// with the first stop token.
  at::Tensor tokens;
  GenerateEnd end = GenerateEnd::kMaxNewTokens;
  double prompt_seconds = 0;  ///< until the first token
  double seconds = 0;         ///< for the others

  /// Returns the rate of the tokens after the first one, of all sequences together; 0 if there is one token only.
  double tokens_per_second() const;
};

/// Generates text that continues a prompt, token by token, with a key/value cache. The model computes in evaluation
/// mode and without gradients, in the precision of its weights and of the caller's autocast region, such as
/// Precision::forward_context().
///
/// Shapes:   prompt [B, T] of int64 or int32, T >= 1; sequences have one length.
/// Numerics: greedy texts (temperature 0) equal those of transformers' generate(do_sample=False), and sampled ones those of
///           do_sample=True from the same seed, as far as rounding leaves the choices equal.
/// Memory:   the cache, for the prompt and max_new_tokens, at most the context.
/// Sync:     one read of the logits per token.
/// Errors:   c10::ValueError for an empty prompt, a prompt that is longer than the context, tokens of the prompt and stop
///           tokens outside of the vocabulary, options out of range, and logits that are not finite; c10::TypeError for a
///           prompt that is not integers.
/// Example:  generate_test.cpp, Generate.GreedyTokensAreTheLikeliestOnes
Generated generate(CausalModel& model, const at::Tensor& prompt, const GenerateOptions& options = {});

}  // namespace mantissa
