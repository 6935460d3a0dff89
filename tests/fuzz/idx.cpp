#include "mantissa/data/idx.h"

#include <algorithm>
#include <bit>
#include <string>

#include <c10/core/ScalarType.h>

#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {
namespace {

void append_big_endian(std::string& out, const char* element, size_t size) {
  out.append(element, size);
  if constexpr (std::endian::native == std::endian::little)
    std::reverse(out.end() - std::ptrdiff_t(size), out.end());
}

}  // namespace

/// Mantissa writes no IDX files, so the round trip's writer is here. It must restore the bytes from the
/// tensor.
void idx(std::string_view bytes) {
  const auto tensor = accepted([&] { return parse_idx(bytes, "f"); });
  if (!tensor) return;
  std::string again(bytes.substr(0, 4));
  require(again[3] == char(tensor->dim()), "another number of dimensions");
  for (const int64_t size : tensor->sizes()) {
    const auto n = static_cast<uint32_t>(size);
    append_big_endian(again, reinterpret_cast<const char*>(&n), sizeof n);
  }
  const auto element_size = static_cast<size_t>(tensor->element_size());
  const auto* element = static_cast<const char*>(tensor->const_data_ptr());
  for (int64_t i = 0; i < tensor->numel(); ++i, element += element_size)
    append_big_endian(again, element, element_size);
  require(again == bytes, "the tensor holds other bytes than the file");
}

}  // namespace mantissa::fuzz
