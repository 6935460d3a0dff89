#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/data/tokenizers/json_reader_internal.h"
#include "mantissa/io/json_internal.h"

namespace mantissa::tokenizers {

using Json = nlohmann::json;

JsonReader::JsonReader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
  if (!json.is_object()) refuse("is no JSON object");
}

void JsonReader::refuse(const std::string& what, const std::string& cure) const {
  TORCH_CHECK_VALUE(false, where_, ": ", what, "; ", cure);
}

const Json* JsonReader::find(const char* name) const {
  const auto found = json_.find(name);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

const Json& JsonReader::need(const char* name) const {
  const Json* const found = find(name);
  if (!found) refuse(std::string("has no ") + name, "give the whole file");
  return *found;
}

std::string JsonReader::text(const char* name) const {
  const Json& value = need(name);
  if (!value.is_string()) refuse(std::string(name) + " is no text");
  return value.get<std::string>();
}

std::string JsonReader::text_or(const char* name, const std::string& otherwise) const {
  return find(name) ? text(name) : otherwise;
}

bool JsonReader::flag(const char* name, bool otherwise) const {
  const Json* const value = find(name);
  if (value && !value->is_boolean()) refuse(std::string(name) + " is neither true nor false");
  return value ? value->get<bool>() : otherwise;
}

int64_t JsonReader::id(const char* name) const {
  const Json& value = need(name);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{kLargestId})
    refuse(std::string(name) + " " + fit_for_message(value.dump()) + " is no id from 0 to " +
           std::to_string(kLargestId));
  return value.get<int64_t>();
}

const Json& JsonReader::list(const char* name) const {
  static const Json empty = Json::array();
  const Json* const value = find(name);
  if (value && !value->is_array()) refuse(std::string(name) + " is no list");
  return value ? *value : empty;
}

void JsonReader::accept_only(const char* name, const Json& value, const char* cure) const {
  const Json* const found = find(name);
  if (found && *found != value)
    refuse(std::string(name) + " " + fit_for_message(found->dump()) + " is not supported", cure);
}

std::string quoted_file(const std::string& file) {
  return std::string(1, '\'').append(fit_for_message(file)).append(1, '\'');
}

Json parse_tokenizer_json(std::string_view text, const std::string& where) {
  constexpr size_t kLargestFile = size_t{256} << 20;
  constexpr int kDepth = 16;
  TORCH_CHECK_VALUE(text.size() <= kLargestFile, where, ": has ", text.size(), " bytes, and at most ",
                    kLargestFile, " are supported; give the file of a tokenizer");
  return parse_json(text, kDepth, [&](const std::string& what) {
    TORCH_CHECK_VALUE(false, where, ": ", what, "; copy the file again");
  });
}

void read_vocabulary(const Json& vocabulary, const std::string& where, Bpe& bpe) {
  TORCH_CHECK_VALUE(vocabulary.is_object() && !vocabulary.empty(), where,
                    ": the vocabulary is no JSON object with tokens; give the whole file");
  for (const auto& [token, value] : vocabulary.items()) {
    TORCH_CHECK_VALUE(value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{kLargestId}, where,
                      ": the token '", fit_for_message(token), "' has the id ", fit_for_message(value.dump()),
                      ", which is not 0 to ", kLargestId, "; correct the file");
    const auto id = value.get<size_t>();
    if (bpe.tokens.size() <= id) bpe.tokens.resize(id + 1);
    TORCH_CHECK_VALUE(!token.empty(), where, ": the token with the id ", id, " is empty; correct the file");
    TORCH_CHECK_VALUE(bpe.tokens[id].empty(), where, ": the tokens '", fit_for_message(bpe.tokens[id]),
                      "' and '", fit_for_message(token), "' have the same id ", id, "; correct the file");
    bpe.tokens[id] = token;
    bpe.vocabulary.emplace(token, static_cast<int64_t>(id));
  }
}

void add_merge(const std::string& left, const std::string& right, const std::string& where, Bpe& bpe,
               int64_t rank) {
  const auto id_of = [&](const std::string& token) {
    const auto found = bpe.vocabulary.find(token);
    TORCH_CHECK_VALUE(found != bpe.vocabulary.end(), where, ": merge ", rank, " ('", fit_for_message(left),
                      "' and '", fit_for_message(right), "') needs the token '", fit_for_message(token),
                      "', which the vocabulary does not have; give the files of one tokenizer");
    return found->second;
  };
  const int64_t id = id_of(left + right);
  bpe.merges[Bpe::pair(id_of(left), id_of(right))] = {rank, id};
}

}  // namespace mantissa::tokenizers
