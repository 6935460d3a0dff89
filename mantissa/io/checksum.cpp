#include "mantissa/io/checksum.h"

#include <array>
#include <cstdio>

// Inlined, so that a program that links this room needs no xxHash library.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace mantissa {

struct Checksum::State {
  XXH3_state_t hash;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->hash); }
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::update(const void* data, size_t bytes) { XXH3_128bits_update(&state_->hash, data, bytes); }

std::string Checksum::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->hash);
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text.data();
}

std::string checksum_of(std::string_view bytes) {
  Checksum sum;
  sum.update(bytes.data(), bytes.size());
  return sum.hex();
}

}  // namespace mantissa
