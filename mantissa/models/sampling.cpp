#include "mantissa/models/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>
#include <c10/util/Exception.h>

namespace mantissa {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

at::Tensor keep_top_k(const at::Tensor& logits, int64_t k) {
  const at::Tensor last = std::get<0>(logits.topk(std::min(k, logits.size(-1)), -1)).narrow(-1, -1, 1);
  return logits.masked_fill(logits < last, kNever);
}

// Sums from the least likely token on, as transformers does, so that rounding removes the same tokens.
at::Tensor keep_top_p(const at::Tensor& logits, double p) {
  const auto [sorted, order] = logits.sort(-1, /*descending=*/false);
  at::Tensor is_left_out = at::softmax(sorted, -1).cumsum(-1) <= 1 - p;
  is_left_out.select(-1, -1).fill_(false);
  return logits.masked_fill(is_left_out.scatter(-1, order, is_left_out), kNever);
}

/// Divides by a temperature. If a quotient is too large for float32, returns the differences to the largest one, which have
/// the same softmax.
at::Tensor divided(const at::Tensor& scores, const at::Tensor& best, double temperature) {
  const at::Tensor quotients = scores / temperature;
  if (std::get<0>(quotients.max(-1)).isfinite().all().item<bool>()) return quotients;
  return ((scores - best.unsqueeze(-1)).to(at::kDouble) / temperature).to(at::kFloat);
}

}  // namespace

void check_sampling_options(const SamplingOptions& o) {
  TORCH_CHECK_VALUE(o.temperature >= 0 && std::isfinite(o.temperature), "generate: temperature is ",
                    o.temperature, "; give 0 for the likeliest token, or a number above 0");
  TORCH_CHECK_VALUE(o.top_k >= 0, "generate: top_k is ", o.top_k,
                    "; give the number of tokens to choose from, or 0 for all");
  TORCH_CHECK_VALUE(o.top_p > 0 && o.top_p <= 1, "generate: top_p is ", o.top_p,
                    "; give a share above 0 and up to 1, which leaves out nothing");
}

at::Tensor sample(const at::Tensor& logits, const SamplingOptions& o,
                  const std::optional<at::Generator>& generator) {
  at::Tensor scores = logits.to(at::kFloat);
  const at::Tensor best = std::get<0>(scores.max(-1));  // nan if any is
  TORCH_CHECK_VALUE(best.isfinite().all().item<bool>(),
                    "generate: the model's logits are nan or inf; its weights are damaged, "
                    "or their values are too large for the precision, such as 16-true: try bf16 or 32-true");
  if (o.temperature == 0) return scores.argmax(-1);
  if (o.temperature != 1) scores = divided(scores, best, o.temperature);
  if (o.top_k > 0) scores = keep_top_k(scores, o.top_k);
  if (o.top_p < 1) scores = keep_top_p(scores, o.top_p);
  return at::multinomial(at::softmax(scores, -1), 1, /*replacement=*/false, generator).squeeze(-1);
}

}  // namespace mantissa
