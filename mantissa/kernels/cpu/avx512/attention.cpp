#include "mantissa/kernels/cpu/attention_blocked_internal.h"
#include "mantissa/kernels/cpu/attention_gradient_internal.h"
#include "mantissa/kernels/cpu/attention_kernel.h"
#include "mantissa/kernels/cpu/attention_rows_internal.h"
#include "mantissa/kernels/cpu/avx512/vector_internal.h"

namespace mantissa::kernels::cpu::avx512 {

void attention(const Attention& g, const AttentionPart& part, float* scratch) {
  if (is_few_rows<Avx512>(g)) return attention_rows<Avx512>(g, part, scratch);
  attention_blocked<Avx512>(g, part, scratch);
}

int64_t attention_scratch_size(const Attention& g) { return attention_blocked_scratch_size<Avx512>(g); }

void attention_gradient(const AttentionGradient& g, const AttentionGradientPart& part, float* scratch) {
  attention_gradient_blocked<Avx512>(g, part, scratch);
}

int64_t attention_gradient_scratch_size(const Attention& g, int64_t keys) {
  return gradient_blocked_scratch_size<Avx512>(g, keys);
}

}  // namespace mantissa::kernels::cpu::avx512
