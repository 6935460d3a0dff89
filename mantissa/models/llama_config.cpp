#include "mantissa/models/llama_config.h"

#include <optional>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "mantissa/io/json_internal.h"
#include "mantissa/models/config_fields_internal.h"

namespace mantissa {
namespace {

using Json = nlohmann::json;

std::optional<RopeScaling> scaling_of(ConfigFields& fields) {
  std::string kind = "default";
  fields.read("type", kind);  // its name before transformers 4.43
  fields.read("rope_type", kind);
  RopeScaling scaling;
  const bool is_llama3 = kind == "llama3";
  TORCH_CHECK_VALUE(is_llama3 || kind == "linear" || kind == "default", fields.where(), ": the kind '",
                    fit_for_message(kind),
                    "' of rope_scaling is not supported; only default, linear and llama3 are");
  if (kind != "default") {
    scaling.kind = is_llama3 ? RopeScaling::Kind::kLlama3 : RopeScaling::Kind::kLinear;
    fields.require("factor");
    fields.read("factor", scaling.factor);
  }
  if (is_llama3) {
    for (const char* name : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
      fields.require(name);
    fields.read("low_freq_factor", scaling.low_freq_factor);
    fields.read("high_freq_factor", scaling.high_freq_factor);
    fields.read("original_max_position_embeddings", scaling.original_max_position_embeddings);
  }
  return kind == "default" ? std::nullopt : std::optional(scaling);
}

void read_rope(ConfigFields& fields, LlamaOptions& options) {
  fields.read("rope_theta", options.rope_theta);
  if (const Json* const scaling = fields.find("rope_scaling")) {
    ConfigFields inner(*scaling, fields.where() + ": rope_scaling");
    options.rope_scaling = scaling_of(inner);
    inner.check_nothing_else();
  }
  if (const Json* const parameters = fields.find("rope_parameters")) {  // both, since transformers 5
    ConfigFields inner(*parameters, fields.where() + ": rope_parameters");
    inner.read("rope_theta", options.rope_theta);
    options.rope_scaling = scaling_of(inner);
    inner.check_nothing_else();
  }
}

void check_llama_features(ConfigFields& fields) {
  check_decoder_features(fields);
  fields.accept_only("hidden_act", "silu");
  fields.accept_only("attention_dropout", 0);
  fields.accept_only("partial_rotary_factor", 1);
  fields.accept_only("sliding_window", nullptr);
}

Json scaling_json(const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::kLinear)
    return {{"rope_type", "linear"}, {"factor", scaling.factor}};
  return {{"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_position_embeddings", scaling.original_max_position_embeddings}};
}

}  // namespace

LlamaOptions parse_llama_config(std::string_view text, const std::string& file) {
  const Json json = parse_config(text, file);
  ConfigFields fields(json, quoted(file));
  check_architecture(fields, "llama", "LlamaForCausalLM");
  check_llama_features(fields);
  for (const char* size :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"})
    fields.require(size);
  LlamaOptions options;
  fields.read("vocab_size", options.vocab_size);
  fields.read("hidden_size", options.hidden_size);
  fields.read("intermediate_size", options.intermediate_size);
  fields.read("num_hidden_layers", options.num_hidden_layers);
  fields.read("num_attention_heads", options.num_attention_heads);
  fields.read("num_key_value_heads", options.num_key_value_heads);
  fields.read("head_dim", options.head_dim);
  fields.read("max_position_embeddings", options.max_position_embeddings);
  fields.read("rms_norm_eps", options.rms_norm_eps);
  read_rope(fields, options);
  fields.read("attention_bias", options.attention_bias);
  fields.read("mlp_bias", options.mlp_bias);
  fields.read("tie_word_embeddings", options.tie_word_embeddings);
  fields.read("initializer_range", options.initializer_range);
  fields.read("pad_token_id", options.pad_token_id);
  fields.read("bos_token_id", options.bos_token_id);
  fields.read("eos_token_id", options.eos_token_id);
  fields.check_nothing_else();
  fields.check_at_most("num_hidden_layers", options.num_hidden_layers, kMaxLayers);
  fields.check_at_most("vocab_size", options.vocab_size, kMaxTokens);
  fields.check_above_0("num_key_value_heads", options.num_key_value_heads);
  fields.check_above_0("head_dim", options.head_dim);
  check_llama_options(options, quoted(file));
  return options;
}

std::string make_llama_config(const LlamaOptions& o, at::ScalarType dtype) {
  const Json json = {{"architectures", Json::array({"LlamaForCausalLM"})},
                     {"model_type", "llama"},
                     {"torch_dtype", config_dtype_name(dtype)},
                     {"vocab_size", o.vocab_size},
                     {"hidden_size", o.hidden_size},
                     {"intermediate_size", o.intermediate_size},
                     {"num_hidden_layers", o.num_hidden_layers},
                     {"num_attention_heads", o.num_attention_heads},
                     {"num_key_value_heads", o.key_value_heads()},
                     {"head_dim", o.channels()},
                     {"hidden_act", "silu"},
                     {"max_position_embeddings", o.max_position_embeddings},
                     {"rms_norm_eps", o.rms_norm_eps},
                     {"rope_theta", o.rope_theta},
                     {"rope_scaling", o.rope_scaling ? scaling_json(*o.rope_scaling) : Json(nullptr)},
                     {"attention_bias", o.attention_bias},
                     {"attention_dropout", 0.0},
                     {"mlp_bias", o.mlp_bias},
                     {"tie_word_embeddings", o.tie_word_embeddings},
                     {"initializer_range", o.initializer_range},
                     {"pad_token_id", or_null(o.pad_token_id)},
                     {"bos_token_id", or_null(o.bos_token_id)},
                     {"eos_token_id", one_or_several(o.eos_token_id)}};
  return json.dump(2) + "\n";
}

}  // namespace mantissa
