#include "mantissa/models/llama_config.h"

#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {

void llama_config(std::string_view bytes) {
  const auto read = accepted([&] { return parse_llama_config(bytes, "f"); });
  if (!read) return;
  const auto again = accepted([&] { return parse_llama_config(make_llama_config(*read, at::kFloat), "f"); });
  require(again.has_value(), "a written config.json is refused");
  require(again->key_value_heads() == read->key_value_heads() && again->channels() == read->channels(),
          "other heads");
  LlamaOptions resolved = *read;  // a written file has the numbers that are 0 by default
  resolved.num_key_value_heads = read->key_value_heads();
  resolved.head_dim = read->channels();
  if (resolved.rope_scaling && resolved.rope_scaling->kind == RopeScaling::Kind::kLinear)
    resolved.rope_scaling =
        RopeScaling{.kind = RopeScaling::Kind::kLinear, .factor = resolved.rope_scaling->factor};
  require(*again == resolved, "other options");
}

}  // namespace mantissa::fuzz
