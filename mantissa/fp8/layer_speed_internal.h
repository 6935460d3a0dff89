#pragma once

// Which layers compute in FP8 on a device that multiplies the codes itself: those that it makes faster.

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "mantissa/fp8/layer_speed.h"
#include "mantissa/fp8/recipe.h"
#include "mantissa/kernels/aten/choice_cache_internal.h"

namespace mantissa::fp8 {

/// The times of layers on one device. A file of the user keeps them, as it keeps those of the CPU's kernels.
class LayerSpeeds {
 public:
  LayerSpeeds(const std::string& device_name, SecondsOf seconds_of)
      : cache_(ChoiceCache::read_of_device(device_name)), seconds_of_(std::move(seconds_of)) {}

  /// Returns the times of a layer, which are measured once for each shape; numbers of tokens up to the same power of two
  /// share them.
  /// Threads: any may call; while one measures, the others wait.
  Fp8LayerSpeed of(const Fp8LayerShape& shape);
  std::vector<Fp8LayerSpeed> all();

 private:
  std::mutex mutex_;
  ChoiceCache cache_;
  SecondsOf seconds_of_;
  std::map<std::string, Fp8LayerSpeed> known_;  ///< to this process
};

/// Returns the recipe's name and its settings that change the kernels and are not the default, such as
/// "Float8CurrentScaling-E4M3".
std::string variant_of(const Fp8Recipe& recipe);

/// Returns the speeds of a device.
LayerSpeeds& layer_speeds(at::Device device);

/// For tests: while it lives, layers of every device are measured by `seconds_of`, and not cached.
class InjectedTimer {
 public:
  explicit InjectedTimer(const SecondsOf& seconds_of);
  ~InjectedTimer();
  InjectedTimer(const InjectedTimer&) = delete;
  InjectedTimer& operator=(const InjectedTimer&) = delete;
};

}  // namespace mantissa::fp8
