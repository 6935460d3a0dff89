#pragma once

#include <string>

namespace mantissa {

/// Returns `name`, with a number appended if `keyed` already has that name: "csv", "csv#2".
template <typename Keyed>
std::string unused_key(const Keyed& keyed, const std::string& name) {
  std::string key = name;
  for (int n = 2; keyed.contains(key); ++n) key = name + "#" + std::to_string(n);
  return key;
}

}  // namespace mantissa
