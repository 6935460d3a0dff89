#include "mantissa/optim/newton_schulz.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/matmul.h>
#include <c10/util/Exception.h>

namespace mantissa {

at::Tensor zeropower_via_newtonschulz(const at::Tensor& matrix, const NewtonSchulzCoefficients& coefficients,
                                      int64_t steps, double eps) {
  TORCH_CHECK_VALUE(matrix.dim() == 2, "zeropower_via_newtonschulz: the input has the shape ", matrix.sizes(),
                    "; give it a matrix");
  TORCH_CHECK_VALUE(steps >= 0 && steps < 100, "zeropower_via_newtonschulz: ", steps,
                    " steps are not from 0 to 99; 5 are usual");
  const at::NoGradGuard no_grad;
  const auto [a, b, c] = coefficients;
  // The products are those of the smaller size.
  const bool is_tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(at::kBFloat16);
  if (is_tall) x = x.t();
  x = x.div(x.norm().clamp_min(eps));
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor gram = at::matmul(x, x.t());
    const at::Tensor polynomial = at::addmm(gram, gram, gram, /*beta=*/b, /*alpha=*/c);
    x = at::addmm(x, polynomial, x, /*beta=*/a);
  }
  return is_tall ? x.t() : x;
}

}  // namespace mantissa
