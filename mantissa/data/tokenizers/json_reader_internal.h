#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "mantissa/data/tokenizers/bpe_internal.h"

namespace mantissa::tokenizers {

/// An object of a tokenizer.json. Every error names the file and the field.
class JsonReader {
 public:
  /// Errors: c10::ValueError if `json` is no object.
  JsonReader(const nlohmann::json& json, std::string where);

  /// Returns the field, or null if it is missing or null.
  const nlohmann::json* find(const char* name) const;
  const nlohmann::json& need(const char* name) const;
  JsonReader object(const char* name) const { return {need(name), where_ + "." + name}; }
  std::string text(const char* name) const;
  std::string text_or(const char* name, const std::string& otherwise) const;
  bool flag(const char* name, bool otherwise) const;
  /// Returns the id of a token: 0 to kLargestId.
  int64_t id(const char* name) const;
  /// Returns a list, which is empty if there is none.
  const nlohmann::json& list(const char* name) const;
  /// Refuses a field that is neither missing, nor null, nor `value`.
  void accept_only(const char* name, const nlohmann::json& value, const char* cure) const;
  /// Calls visit(JsonReader) for each object of a list.
  template <typename Visit>
  void each(const char* name, const Visit& visit) const {
    size_t i = 0;
    for (const nlohmann::json& item : list(name))
      visit(JsonReader(item, where_ + "." + name + "[" + std::to_string(i++) + "]"));
  }
  [[noreturn]] void refuse(const std::string& what, const std::string& cure = kCure) const;
  const std::string& where() const { return where_; }

  static constexpr const char* kCure = "give the tokenizer.json of a GPT-2 or a Llama";

 private:
  const nlohmann::json& json_;
  std::string where_;
};

/// The largest id of a token, far above every vocabulary in use.
inline constexpr int64_t kLargestId = (1 << 21) - 1;

/// Returns the name of a file for a message, in quotation marks.
std::string quoted_file(const std::string& file);

/// Returns the DOM of a file.
/// Errors: c10::ValueError that names the file, if it is no JSON.
nlohmann::json parse_tokenizer_json(std::string_view text, const std::string& where);

/// Fills in the vocabulary.
/// Errors: c10::ValueError that begins with `where`, for ids that are too large or given twice.
void read_vocabulary(const nlohmann::json& vocabulary, const std::string& where, Bpe& bpe);
/// Adds the rule that joins two tokens.
/// Errors: c10::ValueError that begins with `where`, for a rule whose tokens are not in the vocabulary.
void add_merge(const std::string& left, const std::string& right, const std::string& where, Bpe& bpe,
               int64_t rank);

}  // namespace mantissa::tokenizers
