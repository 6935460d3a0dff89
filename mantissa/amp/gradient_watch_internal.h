#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/amp/gradient_hooks.h"
#include "mantissa/core/weak_map.h"

namespace mantissa {

using WeakTensor = WeakKey<at::Tensor>::Weak;

/// Returns the gradient of `parameter`, which is undefined if it is gone.
inline at::Tensor gradient_of(const at::Tensor& parameter) {
  return parameter.defined() ? parameter.grad() : at::Tensor();
}

/// Returns how often `gradient` was written in place; 0 if it is undefined.
inline uint32_t version_of(const at::Tensor& gradient) {
  return gradient.defined() ? static_cast<uint32_t>(gradient._version()) : 0;
}

/// What has happened to a gradient since its optimizer's gradients were checked for inf and nan.
enum class GradientOrigin : uint8_t {
  kChecked,  ///< it was checked, or the loop has written it since
  kNew,      ///< a backward pass has made it since, or filled it after it was cleared
  kMixed,    ///< a backward pass has added to a checked one
  kZero      ///< it was set to 0, and no backward pass has written it since
};

/// Observes which gradients one backward pass writes. The version of a gradient alone does not show this:
/// gradients that are views of one bucket share a version, and clipping writes gradients too. What happens
/// before and after the pass therefore does not count, and gradients that share their version are observed by
/// hooks.
/// Sync:    origins() reads from the device whether gradients were 0, and only if the pass has written one of
///          these parameters.
/// Threads: the hooks run on the threads that accumulate; the functions here on the thread of the loop.
class GradientWatch {
 public:
  /// `parameters`: undefined for those that are gone.
  explicit GradientWatch(const std::vector<at::Tensor>& parameters);

  /// Returns the origins of the gradients that the parameters have now; `from`: when this watch began.
  std::vector<GradientOrigin> origins(const std::vector<at::Tensor>& gradients,
                                      std::vector<GradientOrigin> from) const;

 private:
  struct Watched {
    bool has_gradient;
    WeakTensor gradient;
    uint32_t version;
    std::shared_ptr<std::atomic<bool>> is_accumulated;  ///< set by the hook; null without one
    at::Tensor norm;                                    ///< 0-dim: 0 if all elements were 0
  };
  void add(const at::Tensor& parameter, const at::Tensor& gradient);
  void measure(const std::vector<at::Tensor>& parameters);
  static bool is_written(const Watched& watched, const at::Tensor& gradient);

  std::vector<Watched> watched_;
  std::vector<GradientHook> hooks_;
};

}  // namespace mantissa
