#pragma once

#include <functional>
#include <memory>

#include <c10/core/Device.h>

namespace mantissa {

/// A step that is captured once and replayed as it is: in a CUDA graph on a GPU; on the CPU, for a rehearsal, called again.
///
/// Errors: c10::Error for CUDA in a build without it, and libtorch's if the step waits for the device.
class Graphed {
 public:
  /// Takes `warm_ups` steps in a stream of its own, which make what a capture must not make (states, handles of libraries),
  /// and captures one more, which computes nothing yet.
  Graphed(at::Device device, std::function<void()> step, int warm_ups = 3);
  ~Graphed();
  Graphed(const Graphed&) = delete;
  Graphed& operator=(const Graphed&) = delete;

  /// In the current stream.
  void replay();

 private:
  struct Graph;
  std::function<void()> step_;
  std::unique_ptr<Graph> graph_;  ///< null on the CPU
};

}  // namespace mantissa
