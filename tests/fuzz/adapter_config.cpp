#include <string>
#include <string_view>

#include "mantissa/lora/lora_config.h"
#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {

void adapter_config(std::string_view bytes) {
  const auto read = accepted([&] { return parse_adapter_config(bytes, "f"); });
  if (!read) return;
  const auto again = accepted([&] { return parse_adapter_config(to_adapter_config(*read), "f"); });
  require(again.has_value(), "a written adapter_config is refused");
  require(*again == *read, "other settings");
  // What a file gives must neither take for ever nor overflow the stack.
  const std::string name = "blocks.0.attention.query_projection";
  accepted([&] { return read->target_modules.matches(name); });
  accepted([&] { return read->rank_of(name); });
}

}  // namespace mantissa::fuzz
