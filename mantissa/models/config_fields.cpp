#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/io/json_internal.h"
#include "mantissa/models/config_fields_internal.h"

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
                              "output_past",
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

}  // namespace

ConfigFields::ConfigFields(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  TORCH_CHECK_VALUE(object.is_object(), where_, ": is no JSON object; give the config.json of a model");
}

const Json* ConfigFields::find(const std::string& name) {
  names_.push_back(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void ConfigFields::refuse(const std::string& name, const std::string& why) const {
  const auto found = object_.find(name);
  const std::string value = found == object_.end() ? "" : " " + fit_for_message(found->dump());
  TORCH_CHECK_VALUE(false, where_, ": ", name, value, " ", why);
}

void ConfigFields::read(const std::string& name, int64_t& to) {
  if (const Json* const value = find(name)) to = whole(name, *value);
}

void ConfigFields::read(const std::string& name, std::optional<int64_t>& to) {
  const Json* const value = find(name);
  if (value) to = whole(name, *value);
  if (!value && object_.contains(name)) to.reset();
}

void ConfigFields::read(const std::string& name, double& to) {
  const Json* const value = find(name);
  if (value && !value->is_number()) refuse(name, "is no number");
  if (value) to = value->get<double>();
}

void ConfigFields::read(const std::string& name, bool& to) {
  const Json* const value = find(name);
  if (value && !value->is_boolean()) refuse(name, "is neither true nor false");
  if (value) to = value->get<bool>();
}

void ConfigFields::read(const std::string& name, std::string& to) {
  const Json* const value = find(name);
  if (value && !value->is_string()) refuse(name, "is no text");
  if (value) to = value->get<std::string>();
}

void ConfigFields::read(const std::string& name, std::vector<int64_t>& to) {
  const Json* const value = find(name);
  if (!value && !object_.contains(name)) return;
  to.clear();
  if (!value) return;
  if (!value->is_array()) return to.push_back(whole(name, *value));
  for (const Json& one : *value) to.push_back(whole(name, one));
}

void ConfigFields::require(const std::string& name) const {
  TORCH_CHECK_VALUE(object_.contains(name) && !object_[name].is_null(), where_, ": has no ", name,
                    "; give the config.json that belongs to the weights");
}

void ConfigFields::check_at_most(const std::string& name, int64_t value, int64_t most) const {
  if (value > most)
    refuse(name, "is too large; at most " + std::to_string(most) +
                     " can be read: give the config.json that belongs to the weights");
}

void ConfigFields::check_above_0(const std::string& name, int64_t value) const {
  const auto found = object_.find(name);
  const bool is_given = found != object_.end() && !found->is_null();
  if (is_given && value <= 0)
    refuse(name, "is not above 0; give the config.json that belongs to the weights");
}

void ConfigFields::accept_only(const std::string& name, const Json& value) {
  const Json* const found = find(name);
  if (found && *found != value)
    refuse(name, "is not supported, only " + value.dump() + "; this model cannot be computed here");
}

void ConfigFields::check_nothing_else() const {
  for (const auto& [name, value] : object_.items()) {
    if (std::find(names_.begin(), names_.end(), name) != names_.end()) continue;
    if (std::find(kIgnored.begin(), kIgnored.end(), name) != kIgnored.end()) continue;
    TORCH_CHECK_VALUE(false, where_, ": the field '", fit_for_message(name), "' is unknown",
                      fit_for_message(did_you_mean(name, names_)),
                      ", and may change the model; remove it if it does not");
  }
}

int64_t ConfigFields::whole(const std::string& name, const Json& value) const {
  constexpr int64_t kLargest = int64_t{1} << 31;  // products of two sizes stay far below the limit of int64
  if (!value.is_number_integer()) refuse(name, "is no whole number");
  if (value.is_number_unsigned() && value.get<uint64_t>() > kLargest) refuse(name, "is too large");
  if (value.get<int64_t>() < -kLargest) refuse(name, "is too small");
  return value.get<int64_t>();
}

std::string quoted(const std::string& file) { return c10::str('\'', fit_for_message(file), '\''); }

nlohmann::json parse_config(std::string_view text, const std::string& file) {
  return parse_json(text, /*max_depth=*/8, [&](const std::string& what) {
    TORCH_CHECK_VALUE(false, quoted(file), ": ", what, "; give the config.json of a model");
  });
}

std::string model_type_of(std::string_view text, const std::string& file) {
  const Json json = parse_config(text, file);
  ConfigFields fields(json, quoted(file));
  std::string type;
  fields.read("model_type", type);
  return fit_for_message(type);
}

void check_architecture(ConfigFields& fields, const std::string& model_type,
                        const std::string& architecture) {
  std::string type;
  fields.read("model_type", type);
  TORCH_CHECK_VALUE(type == model_type, fields.where(), ": model_type is '", fit_for_message(type),
                    "'; only a ", model_type, " can be read here");
  const Json* const architectures = fields.find("architectures");
  if (architectures && *architectures != Json::array({architecture}))
    fields.refuse("architectures",
                  "is not [\"" + architecture + "\"], the model that predicts the next token");
}

void check_decoder_features(ConfigFields& fields) {
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

const char* config_dtype_name(at::ScalarType dtype) {
  static const std::map<at::ScalarType, const char*> names{
      {at::kDouble, "float64"}, {at::kFloat, "float32"}, {at::kBFloat16, "bfloat16"}, {at::kHalf, "float16"}};
  const auto found = names.find(dtype);
  TORCH_CHECK_VALUE(found != names.end(), "config.json: ", dtype,
                    " is no dtype of a model's weights; give float64, float32, bfloat16 or float16");
  return found->second;
}

Json or_null(const std::optional<int64_t>& value) { return value ? Json(*value) : Json(nullptr); }

Json one_or_several(const std::vector<int64_t>& values) {
  if (values.empty()) return nullptr;
  return values.size() == 1 ? Json(values[0]) : Json(values);
}

}  // namespace mantissa
