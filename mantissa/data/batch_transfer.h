#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "mantissa/data/batch.h"

namespace mantissa {

/// Copies batches to a device while the device still computes with earlier ones. Protocol: begin() for each
/// batch, take() for each in the same order. A loop that begins the next batch before it computes with the
/// current one hides the copy.
///
/// On a GPU, begin() converts the batch on the host, copies it into page-locked memory and starts the copy to
/// the device on a separate stream; take() makes the current stream wait for it. Conversion comes first
/// because that is Lightning's order, and because a 16-bit mode then copies half of the bytes. On the CPU
/// nothing is copied, and take() converts.
///
/// Numerics: the tensors are those of `convert(batch).to(device)`, strides included.
/// Memory:   the batches between begin() and take() on the device, and as much page-locked memory, which
///           libtorch's host allocator keeps for the next batch.
/// Sync:     none for dense tensors. Sparse, nested and quantized tensors, and those of another device, are
///           copied by Tensor::to() on the current stream.
/// Threads:  one at a time; objects in several threads share one stream per device.
/// Errors:   exceptions of `convert` and of the copy come out of begin(), on the CPU out of take(); the batch
///           is dropped.
/// Example:  batch_transfer_test.cpp, BatchTransfer.TheComputingStreamWaitsForTheCopy.
class BatchTransfer {
 public:
  using Convert = std::function<Batch(const Batch&)>;

  /// A `device` without an index is the current one of its kind. `convert` converts a batch on the host.
  /// Errors: c10::ValueError, with why, if `device` is a GPU and this process can use none.
  BatchTransfer(at::Device device, Convert convert);

  /// If the caller's tensor is page-locked, it is copied from directly: it must not be written again.
  void begin(Batch batch);
  /// Returns the oldest begun batch, for the current stream of the device.
  /// Errors: c10::Error if there is none.
  Batch take();
  /// Whether no batch waits for take().
  bool empty() const { return begun_.empty(); }

 private:
  struct Begun {
    Batch batch;                       ///< on the CPU before conversion
    std::vector<at::Tensor> copies;    ///< the allocator assigns them to the copying stream
    std::optional<c10::Event> copied;  ///< null on the CPU
  };

  at::Device device_;
  Convert convert_;
  std::optional<c10::Stream> stream_;  ///< the copying stream; null on the CPU
  std::deque<Begun> begun_;
};

}  // namespace mantissa
