#include "mantissa/models/gpt2_config.h"

#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {

void gpt2_config(std::string_view bytes) {
  const auto read = accepted([&] { return parse_gpt2_config(bytes, "f"); });
  if (!read) return;
  const auto again = accepted([&] { return parse_gpt2_config(make_gpt2_config(*read, at::kFloat), "f"); });
  require(again.has_value(), "a written config.json is refused");
  require(*again == *read, "other options");
}

}  // namespace mantissa::fuzz
