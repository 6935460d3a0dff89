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

/// Copies batches to a device while the device still computes with earlier ones. Call begin() for each batch,
/// and take() for each in the same order. A loop that begins the next batch before it computes with the
/// current one hides the copy.
///
/// On a GPU, begin() converts the batch on the host, copies it into page-locked memory and starts the copy to
/// the device on a separate stream; take() makes the current stream wait for it. The batch is converted
/// before it is copied, as in Lightning; a 16-bit mode then copies half as many bytes. On the CPU nothing is
/// copied, and take() converts the batch.
///
/// Numerics: the tensors are those of `convert(batch).to(device)`, strides included.
/// Memory:   the device holds the batches between begin() and take(). As much page-locked memory is taken,
///           which libtorch's host allocator reuses for later batches.
/// Sync:     none for dense tensors on the CPU. Sparse, nested and quantized tensors, and tensors on another
///           device, are copied by Tensor::to() on the current stream.
/// Threads:  one at a time; objects in several threads share one stream per device.
/// Errors:   begin(), or take() on the CPU, rethrows exceptions of `convert` and of the copy; the batch is
///           dropped.
/// Example:  batch_transfer_test.cpp, BatchTransferToADevice.TheComputingStreamWaitsForTheCopy.
class BatchTransfer {
 public:
  using Convert = std::function<Batch(const Batch&)>;

  /// A `device` without an index is the current one of its kind. `convert` converts a batch on the host.
  /// Errors: c10::ValueError with the reason if `device` is a GPU and this process can use none.
  BatchTransfer(at::Device device, Convert convert);

  /// A page-locked tensor is copied directly, so the caller must not write to it afterwards.
  void begin(Batch batch);
  /// Returns the oldest batch that was begun and not taken, for use on the device's current stream.
  /// Errors: c10::Error if there is none.
  Batch take();
  /// Whether no batch waits for take().
  bool empty() const { return begun_.empty(); }

 private:
  struct Begun {
    Batch batch;                       ///< on the CPU, the batch before conversion
    std::vector<at::Tensor> copies;    ///< their memory belongs to the copying stream
    std::optional<c10::Event> copied;  ///< null on the CPU
  };

  at::Device device_;
  Convert convert_;
  std::optional<c10::Stream> stream_;  ///< the copying stream; null on the CPU
  std::deque<Begun> begun_;
};

}  // namespace mantissa
