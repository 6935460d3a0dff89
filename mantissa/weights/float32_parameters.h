#pragma once

namespace mantissa {

/// A module class that also derives from this one keeps its parameters in float32 when a mode converts
/// the model around it to another dtype. An adapter does, because the updates of an optimizer are smaller
/// than the steps between neighbouring 16-bit numbers.
class KeepsFloat32 {
 public:
  KeepsFloat32() = default;
  KeepsFloat32(const KeepsFloat32&) = default;
  KeepsFloat32& operator=(const KeepsFloat32&) = default;
  virtual ~KeepsFloat32() = default;
};

}  // namespace mantissa
