#include <optional>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "mantissa/fp8/fp8_autocast.h"
#include "mantissa/fp8/region_state_internal.h"

namespace mantissa {

std::shared_ptr<Fp8LinearState> Fp8LinearState::for_product(const Fp8Recipe& recipe) {
  // A backward pass quantizes a gradient in two directions.
  constexpr int64_t kStreams = 2;
  auto state = std::make_shared<Fp8LinearState>(recipe, seed_);
  const std::lock_guard lock(mutex_);
  state->stream_ = stream_;
  // Only gradients are rounded at random, and evaluation changes nothing.
  if (std::holds_alternative<NVFP4BlockScaling>(recipe) && at::GradMode::is_enabled()) stream_ += kStreams;
  state->sample_ = sample_;
  state->native_ = native_;
  return state;
}

std::shared_ptr<Fp8LinearState> state_in_region(const std::shared_ptr<Fp8LinearState>& layer) {
  const std::optional<Fp8Recipe> recipe = current_fp8_autocast().recipe;
  if (!recipe || *recipe == layer->recipe()) return layer;
  TORCH_CHECK_VALUE(
      !std::holds_alternative<DelayedScaling>(*recipe),
      "Fp8Autocast: the region's recipe is a DelayedScaling other than the layer's own, which is ",
      recipe_name(layer->recipe()),
      std::holds_alternative<DelayedScaling>(layer->recipe()) ? " with other settings" : "",
      ": its scales come from a history, and the layer has none of that recipe; make the layer with it, or "
      "choose a recipe without history for the region, such as Float8CurrentScaling");
  return layer->for_product(*recipe);
}

}  // namespace mantissa
