#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// An activation of Transformer Engine's LayerNormMLP.
struct Activation {
  const char* name;
  /// Whether it halves the last dimension: f(first half) * second half.
  bool is_gated;
  at::Tensor (*f)(const at::Tensor&);

  /// Shapes: [..., features] -> [..., features], or [..., features / 2] if gated.
  at::Tensor operator()(const at::Tensor& x) const;
};

/// Returns every activation: gelu, geglu, qgelu, qgeglu, relu, reglu, srelu, sreglu, silu, swiglu and glu.
const std::vector<Activation>& activations();

/// Errors: c10::ValueError that lists the names and suggests the nearest one.
const Activation& find_activation(const std::string& name);

}  // namespace mantissa
