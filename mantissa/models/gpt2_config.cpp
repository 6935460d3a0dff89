#include "mantissa/models/gpt2_config.h"

#include "mantissa/models/config_fields_internal.h"

namespace mantissa {
namespace {

void check_gpt2_features(ConfigFields& fields) {
  check_decoder_features(fields);
  fields.accept_only("scale_attn_weights", true);
  fields.accept_only("scale_attn_by_inverse_layer_idx", false);
  // A copy of n_positions, attention in another order, and the heads of other models.
  for (const char* other : {"n_ctx", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout",
                            "summary_proj_to_labels", "summary_type", "summary_use_proj"})
    fields.find(other);
}

}  // namespace

Gpt2Options parse_gpt2_config(std::string_view text, const std::string& file) {
  const nlohmann::json json = parse_config(text, file);
  ConfigFields fields(json, quoted(file));
  check_architecture(fields, "gpt2", "GPT2LMHeadModel");
  check_gpt2_features(fields);
  Gpt2Options options;
  fields.read("vocab_size", options.vocab_size);
  fields.read("n_positions", options.n_positions);
  fields.read("n_embd", options.n_embd);
  fields.read("n_layer", options.n_layer);
  fields.read("n_head", options.n_head);
  fields.read("n_inner", options.n_inner);
  fields.read("activation_function", options.activation_function);
  fields.read("resid_pdrop", options.resid_pdrop);
  fields.read("embd_pdrop", options.embd_pdrop);
  fields.read("attn_pdrop", options.attn_pdrop);
  fields.read("layer_norm_epsilon", options.layer_norm_epsilon);
  fields.read("initializer_range", options.initializer_range);
  fields.read("tie_word_embeddings", options.tie_word_embeddings);
  fields.read("bos_token_id", options.bos_token_id);
  fields.read("eos_token_id", options.eos_token_id);
  fields.find("pad_token_id");  // unlike a Llama's, its vector is trained
  fields.check_nothing_else();
  fields.check_at_most("n_layer", options.n_layer, kMaxLayers);
  fields.check_at_most("vocab_size", options.vocab_size, kMaxTokens);
  check_gpt2_options(options, quoted(file));
  return options;
}

std::string make_gpt2_config(const Gpt2Options& o, at::ScalarType dtype) {
  const nlohmann::json json = {{"architectures", nlohmann::json::array({"GPT2LMHeadModel"})},
                               {"model_type", "gpt2"},
                               {"torch_dtype", config_dtype_name(dtype)},
                               {"vocab_size", o.vocab_size},
                               {"n_positions", o.n_positions},
                               {"n_embd", o.n_embd},
                               {"n_layer", o.n_layer},
                               {"n_head", o.n_head},
                               {"n_inner", o.n_inner ? nlohmann::json(o.n_inner) : nlohmann::json(nullptr)},
                               {"activation_function", o.activation_function},
                               {"resid_pdrop", o.resid_pdrop},
                               {"embd_pdrop", o.embd_pdrop},
                               {"attn_pdrop", o.attn_pdrop},
                               {"layer_norm_epsilon", o.layer_norm_epsilon},
                               {"initializer_range", o.initializer_range},
                               {"tie_word_embeddings", o.tie_word_embeddings},
                               {"bos_token_id", or_null(o.bos_token_id)},
                               {"eos_token_id", one_or_several(o.eos_token_id)}};
  return json.dump(2) + "\n";
}

}  // namespace mantissa
