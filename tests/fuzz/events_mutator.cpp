// Corrects the lengths and checksums of records after most of libFuzzer's changes, so that the changes reach
// the code behind these checks. The corpus consists of real event files.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "mantissa/io/crc32c.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

/// Writes TFRecord's checksum in its four little-endian bytes.
void put_checksum(uint8_t* to, const uint8_t* from, size_t size) {
  const uint32_t crc = mantissa::crc32c(std::string_view(reinterpret_cast<const char*>(from), size));
  const uint32_t masked = (crc >> 15 | crc << 17) + 0xa282ead8;
  for (int byte = 0; byte < 4; ++byte) to[byte] = static_cast<uint8_t>(masked >> 8 * byte);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  constexpr size_t kHead = 12, kTail = 4;
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 16 == 0) return size;  // imitates a damaged file
  for (size_t at = 0; size - at >= kHead + kTail;) {
    const size_t room = size - at - kHead - kTail;
    // Nearly every length would be too long, so only the first two bytes are used.
    size_t length = data[at] | data[at + 1] << 8;
    if (length > room) length = room;
    const uint64_t in_file = length;
    std::memcpy(data + at, &in_file, sizeof in_file);
    put_checksum(data + at + 8, data + at, 8);
    put_checksum(data + at + kHead + length, data + at + kHead, length);
    at += kHead + length + kTail;
  }
  return size;
}
