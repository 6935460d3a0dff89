#include "mantissa/data/npy.h"

#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {

void npy(std::string_view bytes) {
  const auto header = accepted([&] { return parse_npy_header(bytes, std::ssize(bytes), "f"); });
  if (!header) return;
  int64_t size = static_cast<int64_t>(c10::elementSize(header->dtype));
  for (const int64_t each : header->shape) size *= each;
  require(header->begin + size == std::ssize(bytes), "the values do not end with the file");
}

}  // namespace mantissa::fuzz
