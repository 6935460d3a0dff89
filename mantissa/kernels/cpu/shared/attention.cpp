#include "mantissa/kernels/cpu/attention_blocked_internal.h"
#include "mantissa/kernels/cpu/attention_gradient_internal.h"
#include "mantissa/kernels/cpu/attention_kernel.h"
#include "mantissa/kernels/cpu/attention_rows_internal.h"
#include "mantissa/kernels/cpu/shared/vectors_internal.h"

namespace mantissa::kernels::cpu::MANTISSA_CPU_TIER {

void attention(const Attention& g, const AttentionPart& part, float* scratch) {
  if (is_few_rows<Vectors>(g)) return attention_rows<Vectors>(g, part, scratch);
  attention_blocked<Vectors>(g, part, scratch);
}

int64_t attention_scratch_size(const Attention& g) { return attention_blocked_scratch_size<Vectors>(g); }

void attention_gradient(const AttentionGradient& g, const AttentionGradientPart& part, float* scratch) {
  attention_gradient_blocked<Vectors>(g, part, scratch);
}

int64_t attention_gradient_scratch_size(const Attention& g, int64_t keys) {
  return gradient_blocked_scratch_size<Vectors>(g, keys);
}

}  // namespace mantissa::kernels::cpu::MANTISSA_CPU_TIER
