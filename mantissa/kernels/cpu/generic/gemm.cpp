#include "mantissa/kernels/cpu/generic/gemm_internal.h"

namespace mantissa::kernels::cpu::generic {

void gemm(const Gemm& g, const GemmPart& part, const GemmScratch& scratch) {
  gemm_with(g, part, scratch, [&](int64_t term, int64_t k, int64_t column) {
    return load_rounded(g.b, g.a.element,
                        part.batch * g.b.batch_stride + term * g.b.term_stride + k * g.b.row_stride +
                            column * g.b.col_stride);
  });
}

}  // namespace mantissa::kernels::cpu::generic
