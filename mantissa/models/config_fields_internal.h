#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include <nlohmann/json.hpp>

namespace mantissa {

/// Reads the fields of one object of a config.json, and remembers which ones were read.
///
/// Errors: c10::ValueError, which begins with `where` and names the field.
class ConfigFields {
 public:
  /// `object` must live as long as this one.
  ConfigFields(const nlohmann::json& object, std::string where);
  const std::string& where() const { return where_; }

  /// Returns the field, or null if it is missing or null.
  const nlohmann::json* find(const std::string& name);
  [[noreturn]] void refuse(const std::string& name, const std::string& why) const;
  // A missing field leaves `to` as it is, and so does null unless `to` can be empty.
  void read(const std::string& name, int64_t& to);
  void read(const std::string& name, std::optional<int64_t>& to);
  void read(const std::string& name, double& to);
  void read(const std::string& name, bool& to);
  void read(const std::string& name, std::string& to);
  /// A number, or a list of numbers.
  void read(const std::string& name, std::vector<int64_t>& to);
  void require(const std::string& name) const;
  /// Refuses a size that no model has and that would fill the memory before it is compared with the weights.
  void check_at_most(const std::string& name, int64_t value, int64_t most) const;
  /// Refuses a size that is given and not above 0, where a missing one has a default.
  void check_above_0(const std::string& name, int64_t value) const;
  /// Refuses the field unless it is missing, null or `value`.
  void accept_only(const std::string& name, const nlohmann::json& value);
  /// Refuses fields that were not read, except those of transformers that do not change logits or gradients of a decoder
  /// without padding.
  void check_nothing_else() const;

 private:
  int64_t whole(const std::string& name, const nlohmann::json& value) const;

  const nlohmann::json& object_;
  std::string where_;
  std::vector<std::string> names_;
};

/// The most layers and token ids that a config.json may have, far above those of any model.
inline constexpr int64_t kMaxLayers = 10'000, kMaxTokens = int64_t{1} << 21;

/// Returns 'file', for messages.
std::string quoted(const std::string& file);

/// Parses the text of a config.json; `file` is its name in errors.
nlohmann::json parse_config(std::string_view text, const std::string& file);

/// Returns the model_type of a config.json, or "" if it has none. `file` is its name in errors.
std::string model_type_of(std::string_view text, const std::string& file);

/// Refuses a config.json of another model than the one that predicts the next token: `model_type` and `architecture` are its
/// names there.
void check_architecture(ConfigFields& fields, const std::string& model_type, const std::string& architecture);

/// Refuses fields that make of any decoder of transformers another model.
void check_decoder_features(ConfigFields& fields);

/// Returns what a config.json calls the dtype of a model's weights.
/// Errors: c10::ValueError for a dtype that is not float64, float32, bfloat16 or float16.
const char* config_dtype_name(at::ScalarType dtype);

nlohmann::json or_null(const std::optional<int64_t>& value);
/// Returns null for none, a number for one, and a list for several.
nlohmann::json one_or_several(const std::vector<int64_t>& values);

}  // namespace mantissa
