#pragma once

#include <functional>
#include <memory>

#include <c10/core/Device.h>

namespace mantissa {

/// A step that is captured once and then replayed: in a CUDA graph on a GPU. On the CPU, for a rehearsal, it
/// is called again.
///
/// Errors: c10::Error for CUDA in a build without CUDA, and libtorch's error if the step waits for the
///         device.
class Graphed {
 public:
  /// Takes `warm_ups` steps in a separate stream, to make what a capture must not make (states, handles of
  /// libraries). Then it captures one more step, which computes nothing yet.
  Graphed(at::Device device, std::function<void()> step, int warm_ups = 3);
  ~Graphed();
  Graphed(const Graphed&) = delete;
  Graphed& operator=(const Graphed&) = delete;

  /// Replays the step in the current stream.
  void replay();

 private:
  struct Graph;
  std::function<void()> step_;
  std::unique_ptr<Graph> graph_;  ///< null on the CPU
};

}  // namespace mantissa
