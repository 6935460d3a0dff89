#pragma once

#include <cstdint>
#include <string_view>

namespace mantissa {

/// Returns the 64-bit FNV-1a hash of `text`: the same number in every process and on every machine.
/// Source: http://www.isthe.com/chongo/tech/comp/fnv/.
constexpr uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  return hash;
}

}  // namespace mantissa
