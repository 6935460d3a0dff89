#pragma once

// What every kernel's problem is made of. This header and those of the problems beside it know neither ATen nor a
// device: a kernel for another device takes the same structs. Every build of a kernel includes them, and so that no
// build's code can become the linker's copy for all, they hold no functions but templates on the build, and include no
// torch or STL container header.

#include <cstdint>

namespace mantissa::kernels {

enum class Element : uint8_t { kFloat32, kBFloat16, kFloat16 };

/// In bytes. `Build` is any type of the caller's build; code that is built once for all CPUs leaves it out.
template <class Build = void>
constexpr int64_t element_size(Element element) {
  return element == Element::kFloat32 ? 4 : 2;
}

}  // namespace mantissa::kernels
