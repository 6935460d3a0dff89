#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace mantissa {

struct AutocastOptions {
  /// The dtype of matrix products and convolutions. Unset: the enclosing region's, or else the device's
  /// default (CPU bf16, CUDA fp16).
  std::optional<c10::ScalarType> dtype = std::nullopt;
  /// False: operations run in the dtypes they are given.
  bool enabled = true;
  /// Keeps one cast of each weight until the outermost region ends. Unset: as in the enclosing region.
  std::optional<bool> cache_enabled = std::nullopt;
};

/// Returns the options that re-create this thread's autocast state: Autocast(device_type,
/// current_autocast(device_type)).
/// Use it for code that runs later or on another thread and must compute as here, such as a worker thread or
/// a recomputed forward pass.
/// Errors: c10::Error if the device has no autocast.
AutocastOptions current_autocast(c10::DeviceType device_type);

/// Runs matrix products and convolutions on one kind of device in 16 bits for the rest of the scope, and
/// keeps operations that need the range in float32. Wrap the forward pass and the loss in it, but neither the
/// backward pass nor the optimizer step. The model stays in float32.
///
/// Regions nest; a disabled region may stand inside an enabled one. The destructor restores dtype, flag and
/// cache flag, also after an exception. Leaving the outermost region drops all cached casts.
///
/// Numerics: with the cache on, a weight that is used k times sums its k gradients in the region's dtype.
///           With the cache off, and always with Mantissa's CPU kernels (docs/cpu-kernels.md), the sum is in
///           float32.
/// Memory:   cached casts of the weights live until the outermost region ends; they do not follow a weight
///           that changes inside it. Mantissa's CPU products cache no casts of weights.
/// Threads:  the state belongs to this thread: a worker thread needs its own region. The cast cache is shared
///           by the process and keyed by tensor alone, so threads that share weights must use the same dtype.
/// Errors:   c10::Error if the device has no autocast; c10::ValueError for CUDA with a dtype other than fp16
///           and bf16 (libtorch would compute in it, even in integers), or with bf16 on a GPU that lacks it.
///           On other devices such a dtype warns once and leaves the region disabled, as in torch; so does
///           CUDA without a GPU.
/// Source:   torch.autocast. Unlike torch's guard, this one also drops cached casts wherever the dtype
///           changes: libtorch would hand an outer region's bf16 weight to an fp16 region.
/// Example:  autocast_test.cpp, Autocast.TrainsOneStep
class Autocast {
 public:
  explicit Autocast(c10::DeviceType device_type, const AutocastOptions& options = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  /// False if the caller asked for it, or if a warning explained why the region is disabled.
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

/// Turns off autocast on this thread for the rest of the scope, on each device for which it is on. Use it for
/// a backward pass inside a region, whose device need not be known.
class AutocastOff {
 public:
  AutocastOff();
  ~AutocastOff();
  AutocastOff(const AutocastOff&) = delete;
  AutocastOff& operator=(const AutocastOff&) = delete;

 private:
  std::vector<c10::DeviceType> devices_;
};

/// Returns a function that runs each call of `f` in its own region; corresponds to torch's decorator
/// `@autocast`.
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
