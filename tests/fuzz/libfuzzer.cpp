// libFuzzer's entry point, compiled once for each target. MANTISSA_FUZZ_TARGET is the target's name.
#include <cstddef>
#include <cstdint>
#include <string_view>

// The declaration of targets.h, without libtorch's headers.
namespace mantissa::fuzz {
void MANTISSA_FUZZ_TARGET(std::string_view bytes);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mantissa::fuzz::MANTISSA_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
