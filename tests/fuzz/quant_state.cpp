#include "mantissa/quant/quant_state_json_internal.h"
#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {

void quant_state(std::string_view bytes) {
  const auto state = accepted([&] { return quant::parse_quant_state_json(bytes, "f"); });
  if (!state) return;
  const std::string text = quant::to_json(*state);
  require(quant::parse_quant_state_json(text, "f") == *state, "another state: " + text);
}

}  // namespace mantissa::fuzz
