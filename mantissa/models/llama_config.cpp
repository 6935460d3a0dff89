#include "mantissa/models/llama_config.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "mantissa/core/suggest.h"
#include "mantissa/io/json_internal.h"

namespace mantissa {
namespace {

using Json = nlohmann::json;

/// Fields of transformers that do not change logits or gradients of a decoder without padding.
constexpr std::array kIgnored{"_attn_implementation_autoset",
                              "_name_or_path",
                              "attn_implementation",
                              "bad_words_ids",
                              "begin_suppress_tokens",
                              "chunk_size_feed_forward",
                              "custom_pipelines",
                              "diversity_penalty",
                              "do_sample",
                              "dtype",
                              "early_stopping",
                              "encoder_no_repeat_ngram_size",
                              "exponential_decay_length_penalty",
                              "finetuning_task",
                              "forced_bos_token_id",
                              "forced_eos_token_id",
                              "id2label",
                              "label2id",
                              "length_penalty",
                              "max_length",
                              "min_length",
                              "no_repeat_ngram_size",
                              "num_beam_groups",
                              "num_beams",
                              "num_return_sequences",
                              "output_attentions",
                              "output_hidden_states",
                              "output_scores",
                              "prefix",
                              "pretraining_tp",
                              "problem_type",
                              "remove_invalid_values",
                              "repetition_penalty",
                              "return_dict",
                              "return_dict_in_generate",
                              "sep_token_id",
                              "suppress_tokens",
                              "task_specific_params",
                              "temperature",
                              "tf_legacy_loss",
                              "tokenizer_class",
                              "top_k",
                              "top_p",
                              "torch_dtype",
                              "torchscript",
                              "transformers_version",
                              "typical_p",
                              "unsloth_version",
                              "use_bfloat16",
                              "use_cache"};

/// Reads the fields of one object, and remembers which ones were read.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    TORCH_CHECK_VALUE(object.is_object(), where_, ": is no JSON object; give the config.json of a model");
  }
  const std::string& where() const { return where_; }

  /// Returns the field, or null if it is missing or null.
  const Json* find(const std::string& name) {
    names_.push_back(name);
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& why) const {
    const auto found = object_.find(name);
    const std::string value = found == object_.end() ? "" : " " + fit_for_message(found->dump());
    TORCH_CHECK_VALUE(false, where_, ": ", name, value, " ", why);
  }
  void read(const std::string& name, int64_t& to) {
    if (const Json* const value = find(name)) to = whole(name, *value);
  }
  void read(const std::string& name, std::optional<int64_t>& to) {
    const Json* const value = find(name);
    if (value) to = whole(name, *value);
    if (!value && object_.contains(name)) to.reset();
  }
  void read(const std::string& name, double& to) {
    const Json* const value = find(name);
    if (value && !value->is_number()) refuse(name, "is no number");
    if (value) to = value->get<double>();
  }
  void read(const std::string& name, bool& to) {
    const Json* const value = find(name);
    if (value && !value->is_boolean()) refuse(name, "is neither true nor false");
    if (value) to = value->get<bool>();
  }
  void read(const std::string& name, std::string& to) {
    const Json* const value = find(name);
    if (value && !value->is_string()) refuse(name, "is no text");
    if (value) to = value->get<std::string>();
  }
  /// A number, or a list of numbers.
  void read(const std::string& name, std::vector<int64_t>& to) {
    const Json* const value = find(name);
    if (!value && !object_.contains(name)) return;
    to.clear();
    if (!value) return;
    if (!value->is_array()) return to.push_back(whole(name, *value));
    for (const Json& one : *value) to.push_back(whole(name, one));
  }
  void require(const std::string& name) const {
    TORCH_CHECK_VALUE(object_.contains(name) && !object_[name].is_null(), where_, ": has no ", name,
                      "; give the config.json that belongs to the weights");
  }
  /// Refuses the field unless it is missing, null or `value`.
  void accept_only(const std::string& name, const Json& value) {
    const Json* const found = find(name);
    if (found && *found != value)
      refuse(name, "is not supported, only " + value.dump() + "; this model cannot be computed here");
  }
  void check_nothing_else() const {
    for (const auto& [name, value] : object_.items()) {
      if (std::find(names_.begin(), names_.end(), name) != names_.end()) continue;
      if (std::find(kIgnored.begin(), kIgnored.end(), name) != kIgnored.end()) continue;
      TORCH_CHECK_VALUE(false, where_, ": the field '", fit_for_message(name), "' is unknown",
                        fit_for_message(did_you_mean(name, names_)),
                        ", and may change the model; remove it if it does not");
    }
  }

 private:
  int64_t whole(const std::string& name, const Json& value) const {
    constexpr int64_t kLargest = int64_t{1} << 31;  // products of two sizes stay far below the limit of int64
    if (!value.is_number_integer()) refuse(name, "is no whole number");
    if (value.is_number_unsigned() && value.get<uint64_t>() > kLargest) refuse(name, "is too large");
    if (value.get<int64_t>() < -kLargest) refuse(name, "is too small");
    return value.get<int64_t>();
  }

  const Json& object_;
  std::string where_;
  std::vector<std::string> names_;
};

std::optional<RopeScaling> scaling_of(Fields& fields) {
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

void read_rope(Fields& fields, LlamaOptions& options) {
  fields.read("rope_theta", options.rope_theta);
  if (const Json* const scaling = fields.find("rope_scaling")) {
    Fields inner(*scaling, fields.where() + ": rope_scaling");
    options.rope_scaling = scaling_of(inner);
    inner.check_nothing_else();
  }
  if (const Json* const parameters = fields.find("rope_parameters")) {  // both, since transformers 5
    Fields inner(*parameters, fields.where() + ": rope_parameters");
    inner.read("rope_theta", options.rope_theta);
    options.rope_scaling = scaling_of(inner);
    inner.check_nothing_else();
  }
}

void check_architecture(Fields& fields) {
  std::string type;
  fields.read("model_type", type);
  TORCH_CHECK_VALUE(type == "llama", fields.where(), ": model_type is '", fit_for_message(type),
                    "'; only a llama can be read here");
  const Json* const architectures = fields.find("architectures");
  if (architectures && *architectures != Json::array({"LlamaForCausalLM"}))
    fields.refuse("architectures", "is not [\"LlamaForCausalLM\"], the Llama that predicts the next token");
}

void check_features(Fields& fields) {
  fields.accept_only("hidden_act", "silu");
  fields.accept_only("attention_dropout", 0);
  fields.accept_only("partial_rotary_factor", 1);
  fields.accept_only("sliding_window", nullptr);
  fields.accept_only("is_encoder_decoder", false);
  fields.accept_only("is_decoder", false);
  fields.accept_only("add_cross_attention", false);
  fields.accept_only("cross_attention_hidden_size", nullptr);
  fields.accept_only("tie_encoder_decoder", false);
  fields.accept_only("decoder_start_token_id", nullptr);
  fields.accept_only("pruned_heads", Json::object());
  if (fields.find("quantization_config"))
    fields.refuse(
        "quantization_config",
        "describes weights that are already quantized; give the model in float, and quantize it by a "
        "mode such as nf4");
}

const char* dtype_name(at::ScalarType dtype) {
  static const std::map<at::ScalarType, const char*> names{
      {at::kDouble, "float64"}, {at::kFloat, "float32"}, {at::kBFloat16, "bfloat16"}, {at::kHalf, "float16"}};
  const auto found = names.find(dtype);
  TORCH_CHECK_VALUE(found != names.end(), "make_llama_config: ", dtype,
                    " is no dtype of a model's weights; give float64, float32, bfloat16 or float16");
  return found->second;
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

Json or_null(const std::optional<int64_t>& value) { return value ? Json(*value) : Json(nullptr); }

Json one_or_several(const std::vector<int64_t>& values) {
  if (values.empty()) return nullptr;
  return values.size() == 1 ? Json(values[0]) : Json(values);
}

}  // namespace

LlamaOptions parse_llama_config(std::string_view text, const std::string& file) {
  const std::string where = "'" + fit_for_message(file) + "'";
  const Json json = parse_json(text, /*max_depth=*/8, [&](const std::string& what) {
    TORCH_CHECK_VALUE(false, where, ": ", what, "; give the config.json of a model");
  });
  Fields fields(json, where);
  check_architecture(fields);
  check_features(fields);
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
  check_llama_options(options, where);
  return options;
}

std::string make_llama_config(const LlamaOptions& o, at::ScalarType dtype) {
  const Json json = {{"architectures", Json::array({"LlamaForCausalLM"})},
                     {"model_type", "llama"},
                     {"torch_dtype", dtype_name(dtype)},
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
