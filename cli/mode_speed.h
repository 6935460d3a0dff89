#pragma once

#include <string>
#include <vector>

namespace mantissa::cli {

/// How long training steps take in a mode on this machine's CPU, relative to 32-true.
struct ModeSpeed {
  std::string mode;
  /// The step time of a small GPT and of a small ResNet, divided by that in 32-true.
  double gpt = 0, resnet = 0;
};

/// Times a training step of two small models in each mode except 32-true and the historical ones. Steps in
/// the mode and in 32-true alternate, and each value is the median of a few rounds. This takes about a second
/// in total, and longer if libtorch's own 16-bit kernels compute, which are slow.
std::vector<ModeSpeed> measure_modes();

}  // namespace mantissa::cli
