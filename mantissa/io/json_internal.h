#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace mantissa {

/// Makes a text from a file fit for a one-line message.
std::string fit_for_message(const std::string& text);

/// Returns the DOM of `text`. Otherwise calls `fail`, which must throw, with the problem: the text is no
/// JSON, an object names a key twice (nlohmann's DOM would keep the last), or there are more than `max_depth`
/// levels.
nlohmann::json parse_json(std::string_view text, int max_depth,
                          const std::function<void(const std::string& what)>& fail);

}  // namespace mantissa
