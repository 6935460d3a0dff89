#pragma once

#include <cstdint>
#include <string_view>

namespace mantissa {

/// Returns the CRC-32C (Castagnoli) of `bytes`, as iSCSI, ext4 and TFRecord files use it.
/// Source: RFC 3720, section 12.1 and the examples of appendix B.4.
uint32_t crc32c(std::string_view bytes);

}  // namespace mantissa
