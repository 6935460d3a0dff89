#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace mantissa {

/// The 128-bit XXH3 hash of a stream of bytes. It detects changes by a disk or a network, but does not
/// protect against deliberate tampering.
///
/// Source: https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md; seed 0.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  void update(const void* data, size_t bytes);
  /// Returns the hash of the bytes so far, as the program xxh128sum prints it: 32 digits, the high half
  /// first.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string checksum_of(std::string_view bytes);

}  // namespace mantissa
