#include "mantissa/models/llama_options.h"

#include <cmath>
#include <utility>

#include <c10/util/Exception.h>

namespace mantissa {
namespace {

bool is_positive(double value) { return value > 0 && std::isfinite(value); }

void check_rope_scaling(const RopeScaling& scaling, const std::string& who) {
  TORCH_CHECK_VALUE(is_positive(scaling.factor), who, ": the factor ", scaling.factor,
                    " of rope_scaling is not above 0; 1 changes nothing");
  if (scaling.kind != RopeScaling::Kind::kLlama3) return;
  TORCH_CHECK_VALUE(is_positive(scaling.low_freq_factor) && is_positive(scaling.high_freq_factor) &&
                        scaling.low_freq_factor < scaling.high_freq_factor,
                    who, ": rope_scaling has low_freq_factor ", scaling.low_freq_factor,
                    " and high_freq_factor ", scaling.high_freq_factor,
                    "; both must be above 0, and the first below the second");
  TORCH_CHECK_VALUE(scaling.original_max_position_embeddings > 0, who,
                    ": original_max_position_embeddings of rope_scaling is ",
                    scaling.original_max_position_embeddings,
                    "; give the model's context before it was extended");
}

}  // namespace

void check_llama_options(const LlamaOptions& o, const std::string& who) {
  for (const auto& [name, size] : {std::pair("vocab_size", o.vocab_size),
                                   {"hidden_size", o.hidden_size},
                                   {"intermediate_size", o.intermediate_size},
                                   {"num_hidden_layers", o.num_hidden_layers},
                                   {"num_attention_heads", o.num_attention_heads},
                                   {"max_position_embeddings", o.max_position_embeddings}})
    TORCH_CHECK_VALUE(size > 0, who, ": ", name, " is ", size, "; give a number above 0");
  for (const auto& [name, number] : {std::pair("rope_theta", o.rope_theta),
                                     {"rms_norm_eps", o.rms_norm_eps},
                                     {"initializer_range", o.initializer_range}})
    TORCH_CHECK_VALUE(is_positive(number), who, ": ", name, " is ", number, "; give a number above 0");
  TORCH_CHECK_VALUE(o.num_key_value_heads >= 0 && o.num_attention_heads % o.key_value_heads() == 0, who,
                    ": num_attention_heads ", o.num_attention_heads,
                    " is not a multiple of num_key_value_heads ", o.num_key_value_heads,
                    "; change one of them");
  TORCH_CHECK_VALUE(o.head_dim > 0 || (o.head_dim == 0 && o.hidden_size % o.num_attention_heads == 0), who,
                    ": head_dim is ", o.head_dim, ", and hidden_size ", o.hidden_size,
                    " is not a multiple of num_attention_heads ", o.num_attention_heads,
                    "; give a head_dim above 0");
  TORCH_CHECK_VALUE(o.channels() % 2 == 0, who, ": a head has ", o.channels(),
                    " channels, which rotary embeddings turn in pairs; choose an even head_dim");
  TORCH_CHECK_VALUE(!o.pad_token_id || (*o.pad_token_id >= 0 && *o.pad_token_id < o.vocab_size), who,
                    ": pad_token_id ", o.pad_token_id.value_or(0), " is outside of the vocabulary, 0 to ",
                    o.vocab_size - 1, "; leave it out if texts have no padding");
  for (const int64_t id : o.eos_token_id)
    TORCH_CHECK_VALUE(id >= 0 && id < o.vocab_size, who, ": eos_token_id ", id,
                      " is outside of the vocabulary, 0 to ", o.vocab_size - 1,
                      "; give the ids that end a text, or none: null in config.json");
  if (o.rope_scaling) check_rope_scaling(*o.rope_scaling, who);
}

}  // namespace mantissa
