#pragma once

#include <string>
#include <vector>

namespace mantissa {

/// Returns the candidate that `name` was most likely meant to be, for errors such as "unknown key 'precison',
/// did you mean 'precision'?".
///
/// It is the only candidate that begins with `name`, if `name` has at least three letters. Otherwise it is the
/// candidate with the fewest edits to `name`, where a swap of neighbours is one edit. The edits must be at most a
/// third of the name's length and keep more than half of the letters. If there is no such candidate, it is the only
/// one that contains `name`; otherwise "".
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates);

/// Returns "a, b, c".
std::string join_names(const std::vector<std::string>& names);

/// Returns the keys of a map, as did_you_mean() and join_names() accept them.
template <typename Map>
std::vector<std::string> keys_of(const Map& map) {
  std::vector<std::string> keys;
  for (const auto& entry : map) keys.push_back(entry.first);
  return keys;
}

/// Returns "; did you mean 'precision'?" or "".
std::string did_you_mean(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace mantissa
