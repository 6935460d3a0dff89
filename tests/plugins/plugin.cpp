// A shared object with its own copy of Mantissa, like a plug-in of another program.

#include "plugin.h"

#include <memory>
#include <utility>

#include <ATen/ops/ones.h>

#include "mantissa/kernels/aten/choice.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/weights/packed_weight.h"

namespace {

/// A format that keeps the values as they are.
class Values final : public mantissa::PackedData {
 public:
  explicit Values(at::Tensor values) : values_(std::move(values)) {}
  std::string description() const override { return "plain values"; }
  at::IntArrayRef sizes() const override { return values_.sizes(); }
  Parts parts() const override { return {{"", values_}}; }
  mantissa::PackedDataPtr with_parts(Parts parts) const override {
    return std::make_shared<Values>(parts.at(""));
  }
  at::Tensor dequantize(at::ScalarType dtype) const override { return values_.to(dtype); }

 private:
  at::Tensor values_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const Plugin plugin;
const Plugin plugin = {mantissa::enable_cpu_kernels,
                       mantissa::enable_cpu_kernels_by_default,
                       mantissa::disable_cpu_kernels,
                       mantissa::cpu_kernels_enabled,
                       [](void (*work)(void*), void* argument) {
                         const mantissa::SeparateCasts casts;
                         work(argument);
                       },
                       mantissa::pin_cpu_kernels,
                       mantissa::cpu_kernel_choices,
                       [] {
                         return mantissa::make_packed_weight(std::make_shared<Values>(at::ones({4, 3})));
                       },
                       mantissa::is_packed};
