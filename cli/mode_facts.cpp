#include "cli/mode_facts.h"

#include "mantissa/precision/scaled.h"

namespace mantissa::cli {

ModeFacts mode_facts(const std::string& mode, const PrecisionOptions& options) {
  ModeFacts facts;
  const bool is_o2 = mode == "O2", has_masters = options.master_weights.value_or(is_o2);
  facts.steps_16_bit_weights = !has_masters && (is_o2 || mode.ends_with("16-true") || mode == "O3");
  facts.steps_fp16_weights = facts.steps_16_bit_weights && mode != "bf16-true";
  const auto made = make_precision(mode, at::Device(at::kCPU), options);
  auto* const scaled = dynamic_cast<ScaledPrecision*>(made.get());
  facts.scales_gradients = scaled && scaled->scaler() && scaled->scaler()->is_enabled();
  return facts;
}

}  // namespace mantissa::cli
