#include "mantissa/io/json_internal.h"

#include <set>
#include <vector>

namespace mantissa {

using nlohmann::json;

std::string fit_for_message(const std::string& text) {
  std::string out = text.substr(0, 100);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

json parse_json(std::string_view text, int max_depth,
                const std::function<void(const std::string& what)>& fail) {
  // A repeated key must be seen while parsing.
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > max_depth) fail("nests deeper than the format allows");
    if (event == json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) fail("names '" + fit_for_message(key) + "' twice");
    }
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::exception& error) {
    fail("is not valid JSON (" + fit_for_message(error.what()) + ")");
  }
  return {};
}

}  // namespace mantissa
