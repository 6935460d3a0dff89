#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

namespace mantissa {

/// A module whose forward() can compute its layers again in the backward pass, so that it keeps only their inputs: activation
/// checkpointing, which others call gradient checkpointing. The module does not know how that is done.
///
/// Example: models/gpt.cpp, GptImpl::hidden_states()
class HasActivationCheckpointing {
 public:
  using Layer = std::function<at::Tensor(const at::Tensor&)>;
  /// Computes layer(x) and keeps x only, as recompute() does (precision/recompute.h).
  using Recompute = at::Tensor (*)(const Layer& layer, const at::Tensor& x);

  virtual ~HasActivationCheckpointing() = default;
  /// Null, the default, keeps every activation.
  void set_recompute(Recompute recompute) { recompute_ = recompute; }
  bool has_recompute() const { return recompute_ != nullptr; }

 protected:
  /// What forward() calls for each layer. `layer` runs again in the backward pass, so it owns what it refers to.
  at::Tensor checkpointed(const Layer& layer, const at::Tensor& x) const {
    return recompute_ ? recompute_(layer, x) : layer(x);
  }

 private:
  Recompute recompute_ = nullptr;
};

}  // namespace mantissa
