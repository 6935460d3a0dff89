#include "mantissa/precision/tf32_mixed.h"

#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/amp/matmul_precision.h"

namespace mantissa {

Tf32Mixed::Tf32Mixed(std::string name) : Precision(std::move(name), {.compute = Format::kTF32}) {
  set_float32_matmul_precision("high");
}

Scope Tf32Mixed::run_context() const {
  struct Guards {
    explicit Guards(Scope outer) : products(std::move(outer)) {}
    Scope products;
    Tf32ConvolutionsGuard convolutions{true};
  };
  return std::make_shared<Guards>(Precision::run_context());
}

void Tf32Mixed::set_float32_matmul_precision(std::optional<std::string> precision) {
  TORCH_CHECK_VALUE(precision != "highest", name(),
                    " with float32_matmul_precision 'highest': that is products in float32; leave it out, or "
                    "choose 32-true");
  Precision::set_float32_matmul_precision(precision.value_or("high"));
}

}  // namespace mantissa
