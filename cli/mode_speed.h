#pragma once

#include <string>
#include <vector>

namespace mantissa::cli {

/// How long training steps take in a mode, on this machine's CPU.
struct ModeSpeed {
  std::string mode;
  double gpt = 0, resnet = 0;  ///< the time of a small model's step over the same in 32-true
};

/// Times a step of two small models in each mode that is no historical one, in turn with 32-true. The median
/// of a few rounds; about a second in all, more where libtorch's own 16-bit kernels compute.
std::vector<ModeSpeed> measure_modes();

}  // namespace mantissa::cli
