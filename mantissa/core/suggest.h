#pragma once

#include <string>
#include <vector>

namespace mantissa {

/// The candidate that `name` was most likely meant to be: the nearest within a third of its length in edits
/// (a swap of neighbours is one) that leave more than half of the letters, else the only one that contains
/// it, else "". For errors that name the cure: "unknown key 'precison', did you mean 'precision'?".
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates);

/// "a, b, c"
std::string join_names(const std::vector<std::string>& names);

/// The names in a map, as did_you_mean() and join_names() take them.
template <typename Map>
std::vector<std::string> keys_of(const Map& map) {
  std::vector<std::string> keys;
  for (const auto& entry : map) keys.push_back(entry.first);
  return keys;
}

/// "; did you mean 'precision'?" or "".
std::string did_you_mean(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace mantissa
