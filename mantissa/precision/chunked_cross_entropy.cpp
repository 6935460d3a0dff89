#include "mantissa/precision/chunked_cross_entropy.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "mantissa/precision/recompute.h"

namespace mantissa {
namespace {

using OutputLayer = std::function<at::Tensor(const at::Tensor&)>;
constexpr int64_t kIgnored = -100;  // torch's ignore_index

void check(const OutputLayer& output_layer, const at::Tensor& hidden_states, const at::Tensor& target,
           int64_t chunk) {
  TORCH_CHECK_VALUE(output_layer, "chunked_cross_entropy: got no output layer");
  TORCH_CHECK_VALUE(chunk > 0, "chunked_cross_entropy: a chunk of ", chunk,
                    " positions; give at least 1, such as 1024");
  TORCH_CHECK_VALUE(target.defined() && target.dim() > 0 && hidden_states.dim() == target.dim() + 1 &&
                        hidden_states.sizes().slice(0, hidden_states.dim() - 1) == target.sizes(),
                    "chunked_cross_entropy: hidden states ", hidden_states.sizes(), " do not fit targets ",
                    target.defined() ? c10::str(target.sizes()) : "(none)",
                    "; they are [samples, ..., width] where targets are [samples, ...]");
}

at::Tensor float_logits(const OutputLayer& output_layer, const at::Tensor& x) {
  const at::Tensor logits = output_layer(x);
  const bool reduced = logits.scalar_type() == at::kHalf || logits.scalar_type() == at::kBFloat16;
  return reduced ? logits.to(at::kFloat) : logits;
}

at::Tensor sum_of(const at::Tensor& logits, const at::Tensor& target) {
  return at::cross_entropy_loss(logits, target, {}, at::Reduction::Sum, kIgnored);
}

/// The positions in one row, and their chunks. A split's backward pass joins the chunks' gradients once.
struct Chunks {
  Chunks(const at::Tensor& hidden_states, const at::Tensor& all_targets, int64_t chunk)
      : targets(all_targets.flatten().split(chunk)),
        hidden(hidden_states.flatten(0, -2).split(chunk)),
        counted((all_targets != kIgnored).sum()) {}
  std::vector<at::Tensor> targets, hidden;
  at::Tensor counted;
};

}  // namespace

at::Tensor chunked_cross_entropy(const OutputLayer& output_layer, const at::Tensor& hidden_states,
                                 const at::Tensor& target, int64_t chunk) {
  check(output_layer, hidden_states, target, chunk);
  const Chunks chunks(hidden_states, target, chunk);
  at::Tensor sum;
  for (size_t i = 0; i < chunks.hidden.size(); ++i) {
    const auto loss = [output_layer, its = chunks.targets[i]](const at::Tensor& x) {
      return sum_of(float_logits(output_layer, x), its);
    };
    const at::Tensor part = recompute(loss, chunks.hidden[i]);
    sum = sum.defined() ? sum + part : part;
  }
  return sum / chunks.counted;
}

ChunkedScores chunked_scores(const OutputLayer& output_layer, const at::Tensor& hidden_states,
                             const at::Tensor& target, int64_t chunk) {
  check(output_layer, hidden_states, target, chunk);
  const at::NoGradGuard no_grad;
  const Chunks chunks(hidden_states, target, chunk);
  at::Tensor sum, correct;
  for (size_t i = 0; i < chunks.hidden.size(); ++i) {
    const at::Tensor logits = float_logits(output_layer, chunks.hidden[i]);
    const at::Tensor part = sum_of(logits, chunks.targets[i]);
    const at::Tensor right = logits.argmax(-1).eq(chunks.targets[i]).sum();
    sum = sum.defined() ? sum + part : part;
    correct = correct.defined() ? correct + right : right;
  }
  return {sum / chunks.counted, correct};
}

}  // namespace mantissa
