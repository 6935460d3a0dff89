#pragma once

#include <functional>
#include <optional>
#include <utility>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace mantissa {

struct AutocastOptions {
  /// What products run in; unset: the device's own (CPU bf16, CUDA fp16), or the enclosing region's.
  std::optional<c10::ScalarType> dtype = std::nullopt;
  /// False: operations run in the dtypes they are given.
  bool enabled = true;
  /// Keep one cast of each weight until the outermost region ends; unset: as it is outside.
  std::optional<bool> cache_enabled = std::nullopt;
};

/// What re-creates this thread's present state: Autocast(device_type, current_autocast(device_type)). For
/// code that runs later or elsewhere and must compute as here: a worker thread, a recomputed forward pass.
/// Errors: c10::Error if the device has no autocast.
AutocastOptions current_autocast(c10::DeviceType device_type);

/// Runs matrix products and convolutions on one kind of device in 16 bits, and what needs the range in
/// float32, for the rest of the scope. Wrap the forward pass and the loss; neither the backward pass nor the
/// optimizer's step, and a model that stays in float32.
///
/// Regions nest, also a disabled one inside an enabled one. The scope's end restores dtype, flag and cache
/// flag, also when an exception ends it, and leaving the outermost region drops all cached casts.
///
/// Numerics: with the cache on, a weight used k times sums its k gradients in the region's dtype; with the
///           cache off, and by Mantissa's CPU kernels (docs/cpu-kernels.md) either way, in float32.
/// Memory:   cached casts of the weights live until the outermost region ends, and do not see a weight that
///           changes inside it. Mantissa's CPU products of weights make none.
/// Threads:  the state is this thread's own: a worker thread needs its own region. The cast cache is one for
///           the process, keyed by tensor alone: threads that share weights must share the dtype.
/// Errors:   c10::Error if the device has no autocast; c10::ValueError for CUDA with a dtype other than fp16
///           and bf16 (libtorch would compute in it, even in integers), or with bf16 that the GPU cannot do.
///           Elsewhere such a dtype, and CUDA without a GPU, warn once and leave the region disabled, as in
///           torch.
/// Source:   spec AC-1 to AC-9, AC-24, AC-27. Unlike torch's guard it drops cached casts wherever the dtype
///           changes: libtorch would hand an outer region's bf16 weight to an fp16 one.
/// Example:  autocast_test.cpp, Autocast.TrainsOneStep
class Autocast {
 public:
  explicit Autocast(c10::DeviceType device_type, const AutocastOptions& options = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  /// False if it was asked for, or if a warning said why.
  bool enabled() const { return enabled_; }
  /// The dtype that products run in while the region is enabled.
  c10::ScalarType dtype() const { return dtype_; }

 private:
  c10::DeviceType device_type_;
  c10::ScalarType dtype_;
  c10::ScalarType previous_dtype_;
  bool enabled_;
  bool previous_enabled_;
  bool previous_cache_enabled_;
  bool watches_kept_weights_;
};

/// `f`, each call of which runs in a region of its own: torch's `@autocast` in front of a function.
///
/// Errors:  those of Autocast, at the call.
/// Example: autocast_test.cpp, Autocast.AC30_AFunctionsCallsEnterAndLeaveTheRegion
template <typename F>
auto autocast_function(F f, c10::DeviceType device_type, AutocastOptions options = {}) {
  return [f = std::move(f), device_type, options](auto&&... args) -> decltype(auto) {
    const Autocast region(device_type, options);
    return std::invoke(f, std::forward<decltype(args)>(args)...);
  };
}

}  // namespace mantissa
