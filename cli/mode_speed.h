#pragma once

#include <string>
#include <vector>

namespace mantissa::cli {

/// The duration of training steps in a mode, on this machine's CPU.
struct ModeSpeed {
  std::string mode;
  double gpt = 0, resnet = 0;  ///< duration of a small model's step, divided by that in 32-true
};

/// Times a step of two small models in each mode that is not historical, in turn with 32-true. Each value is
/// the median of a few rounds. This takes about a second in total, and more where libtorch's own 16-bit
/// kernels compute.
std::vector<ModeSpeed> measure_modes();

}  // namespace mantissa::cli
