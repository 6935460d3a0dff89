// libFuzzer's entry: compiled once for each target, whose name is MANTISSA_FUZZ_TARGET.
#include <cstddef>
#include <cstdint>
#include <string_view>

// As targets.h has it, without libtorch's headers.
namespace mantissa::fuzz {
void MANTISSA_FUZZ_TARGET(std::string_view bytes);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mantissa::fuzz::MANTISSA_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
