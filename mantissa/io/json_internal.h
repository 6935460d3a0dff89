#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace mantissa {

/// A text of a file, fit for a one-line message.
std::string fit_for_message(const std::string& text);

/// The DOM of `text`, or a call of `fail`, which must throw, with what is wrong: no JSON, an object that names
/// a key twice (nlohmann's DOM would keep the last), more than `max_depth` levels.
nlohmann::json parse_json(std::string_view text, int max_depth,
                          const std::function<void(const std::string& what)>& fail);

}  // namespace mantissa
