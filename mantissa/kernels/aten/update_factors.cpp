#include "mantissa/kernels/aten/update_factors.h"

#include <cmath>

namespace mantissa::kernels {

UpdateFactors update_factors(UpdateRule rule, bool decouples_decay, const UpdateSettings& s, double step) {
  const auto narrow = [](double value) { return static_cast<float>(value); };
  UpdateFactors f = {.step_size = narrow(s.lr),
                     .beta1 = narrow(s.beta1),
                     .beta2 = narrow(s.beta2),
                     .rest1 = narrow(1 - s.beta1),
                     .rest2 = narrow(1 - s.beta2),
                     .eps = narrow(s.eps),
                     .decay = decouples_decay ? 0 : narrow(s.weight_decay),
                     .keep = decouples_decay ? narrow(1 - s.lr * s.weight_decay) : 1};
  if (!has_second_state(rule)) return f;
  const double root = std::sqrt(1 - std::pow(s.beta2, step));
  f.step_size = narrow(s.lr * root / (1 - std::pow(s.beta1, step)));
  f.eps = narrow(s.eps * root);
  return f;
}

}  // namespace mantissa::kernels
