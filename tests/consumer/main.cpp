#include <cstdio>

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/precision/registry.h"

int main() {
  for (const mantissa::Mode& mode : mantissa::modes()) {
    const auto precision = mantissa::make_precision(mode.name, at::kCPU);
    std::printf("%s\n", precision->name().c_str());
  }
  const mantissa::Autocast autocast(at::kCPU);
  const at::Tensor a = at::ones({2, 2});
  return a.mm(a).scalar_type() == at::kBFloat16 ? 0 : 1;
}
