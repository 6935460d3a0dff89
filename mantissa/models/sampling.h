#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace mantissa {

/// How the next token is chosen. The names, meanings and order are those of transformers' generate().
struct SamplingOptions {
  /// Divides the logits. Below 1, likely tokens become more likely; 0 always takes the likeliest one.
  double temperature = 1;
  /// Draws only from the k likeliest tokens, and from those as likely as the last of them; 0: from all.
  int64_t top_k = 0;
  /// Draws only from the likeliest tokens whose probabilities add up to this share, in (0, 1]; at least one remains.
  double top_p = 1;
};

/// Errors: c10::ValueError that names the option out of range.
void check_sampling_options(const SamplingOptions& options);

/// Returns a next token for each row.
///
/// Shapes:   logits [B, vocabulary], floating-point on the CPU -> [B], int64.
/// Numerics: computes in float32. The same logits and the same state of the generator give the token that transformers'
///           generate() draws.
/// Errors:   c10::ValueError if a logit is nan, or all logits of a row are -inf.
/// Source:   Fan et al. 2018, arXiv:1805.04833 (top k); Holtzman et al. 2019, arXiv:1904.09751 (top p).
at::Tensor sample(const at::Tensor& logits, const SamplingOptions& options,
                  const std::optional<at::Generator>& generator = std::nullopt);

}  // namespace mantissa
