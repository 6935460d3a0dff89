#pragma once

// The element types of every kernel's problem. This header, and the headers of the problems beside it, know
// neither ATen nor a device: a kernel for another device takes the same structs. Every build of a kernel
// includes them. They therefore hold no functions except templates on the build, and include no torch or STL
// container header: otherwise the linker could keep the code of one build for all CPUs.

#include <cstdint>

namespace mantissa::kernels {

enum class Element : uint8_t { kFloat32, kBFloat16, kFloat16 };

/// The size in bytes. `Build` is any type of the caller's build; code that is built once for all CPUs leaves
/// it out.
template <class Build = void>
constexpr int64_t element_size(Element element) {
  return element == Element::kFloat32 ? 4 : 2;
}

}  // namespace mantissa::kernels
