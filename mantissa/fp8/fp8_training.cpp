#include "mantissa/fp8/fp8_training.h"

#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "mantissa/fp8/fp8_autocast.h"
#include "mantissa/fp8/linear_fp8_internal.h"
#include "mantissa/fp8/region_state_internal.h"

namespace mantissa {
namespace {

/// Whether autocast casts the factors of a product on this device.
bool is_autocast(at::DeviceType device) {
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
}

/// Whether the sizes and dtypes let a product of the two succeed. If not, its own error says what is wrong.
bool can_multiply(const at::Tensor& factor, const at::Tensor& weight) {
  const at::IntArrayRef sizes = factor.sizes();
  const auto ends_in = [&](size_t dimension, int64_t size) {
    return sizes.size() >= dimension && sizes[sizes.size() - dimension] == size;
  };
  const bool fits = ends_in(1, weight.size(1)) || ends_in(1, weight.size(0)) || ends_in(2, weight.size(1));
  // Autocast casts no float64.
  const bool is_cast = is_autocast(weight.device().type()) && factor.scalar_type() != at::kDouble &&
                       weight.scalar_type() != at::kDouble;
  return fits && (is_cast || factor.scalar_type() == weight.scalar_type());
}

at::ScalarType dtype_of_product(const at::Tensor& factor) {
  return is_autocast(factor.device().type()) ? at::autocast::get_autocast_dtype(factor.device().type())
                                             : factor.scalar_type();
}

/// Returns the factor as the product would get it.
at::Tensor as_input(const at::Tensor& factor) { return factor.detach().to(dtype_of_product(factor)); }

}  // namespace

Fp8TrainingRule::Fp8TrainingRule(std::shared_ptr<Fp8LinearState> state, bool belongs_to_mode)
    : state_(std::move(state)), belongs_to_mode_(belongs_to_mode) {
  TORCH_CHECK_VALUE(state_, "FP8 training: got no state; make an Fp8LinearState with the recipe");
}

bool Fp8TrainingRule::computes(const at::Tensor& factor, const at::Tensor& weight) const {
  const Fp8AutocastOptions region = current_fp8_autocast();
  if (!region.enabled && region.calibrating && can_multiply(factor, weight))
    state_->record_amaxes(as_input(factor), weight.detach());
  if (!region.enabled) return false;
  // A plain product that is an error is that of FP8 as well, whose error says more.
  return !can_multiply(factor, weight) ||
         state_->is_faster_in_fp8(factor, dtype_of_product(factor), weight.detach(), region.recipe);
}

at::Tensor Fp8TrainingRule::linear(const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& bias) const {
  return linear_fp8_in_training(x, weight, bias, state_in_region(state_));
}

WeightRulePtr Fp8TrainingRule::for_copy() const {
  if (!belongs_to_mode_) return std::make_shared<Fp8TrainingRule>(state_->copy());
  // Odd multiples of an odd number, so that a copy's seed is neither that of the weight nor that of another copy.
  constexpr uint64_t kStep = 0xbf58476d1ce4e5b9;
  const uint64_t seed = state_->seed() + kStep * (2 * copies_++ + 1);
  auto copy = std::make_shared<Fp8LinearState>(state_->recipe(), seed);
  copy->set_native(state_->native());
  return std::make_shared<Fp8TrainingRule>(std::move(copy), /*belongs_to_mode=*/true);
}

std::shared_ptr<Fp8LinearState> fp8_state_of(const at::Tensor& weight) {
  const auto rule = std::dynamic_pointer_cast<const Fp8TrainingRule>(weight_rule(weight));
  return rule ? rule->state() : nullptr;
}

}  // namespace mantissa
