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

/// Brings batches to a device while the device still computes with earlier ones. Protocol: begin() for each
/// batch, take() for each in the same order; a loop that begins the next batch before it computes with the
/// current one hides the copy.
///
/// On a GPU, begin() converts the batch on the host, copies it into page-locked memory and starts its way to
/// the device on a stream of its own; take() makes the current stream wait for it. Conversion comes first
/// because it is the order that Lightning has, and because a 16-bit mode then moves half of the bytes. On the
/// CPU nothing is copied, and conversion waits for take().
///
/// Numerics: the tensors are those of `convert(batch).to(device)`, strides included.
/// Memory:   what was begun and not taken, on the device, and as much page-locked memory, which libtorch's
///           host allocator keeps for the next batch.
/// Sync:     none for dense tensors. Sparse, nested and quantized ones, and those of another device, come by
///           Tensor::to() on the current stream.
/// Threads:  one at a time; objects in several threads share one stream a device.
/// Errors:   begin() throws what `convert` and the copy throw, on the CPU take() does; the batch is dropped.
/// Example:  batch_transfer_test.cpp, BatchTransfer.TheComputingStreamWaitsForTheCopy.
class BatchTransfer {
 public:
  using Convert = std::function<Batch(const Batch&)>;

  /// `device` without a number is the current one of its kind. `convert` is what a batch goes through on the
  /// host.
  /// Errors: c10::ValueError, with why, if `device` is a GPU and this process can use none.
  BatchTransfer(at::Device device, Convert convert);

  /// A page-locked tensor of the caller's is copied from directly: it must not be written again.
  void begin(Batch batch);
  /// The batch that was begun first, for the current stream of the device.
  /// Errors: c10::Error if none was begun.
  Batch take();
  /// Whether no batch waits for take().
  bool empty() const { return begun_.empty(); }

 private:
  struct Begun {
    Batch batch;                       ///< on the CPU before conversion
    std::vector<at::Tensor> copies;    ///< the allocator counts them to the copying stream
    std::optional<c10::Event> copied;  ///< null on the CPU
  };

  at::Device device_;
  Convert convert_;
  std::optional<c10::Stream> stream_;  ///< the copying one; null on the CPU
  std::deque<Begun> begun_;
};

}  // namespace mantissa
