#include "mantissa/data/batch_transfer.h"

#include <mutex>
#include <unordered_map>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "mantissa/core/device.h"

namespace mantissa {
namespace {

/// Returns one stream per device for the whole process. The allocator returns memory to the stream on which
/// it was allocated; with a new stream for every pass, each stream would hold batches of its own.
c10::Stream copying_stream(at::Device device) {
  static std::mutex mutex;
  static std::unordered_map<at::Device, c10::Stream> streams;
  const std::lock_guard lock(mutex);
  const auto found = streams.find(device);
  if (found != streams.end()) return found->second;
  return streams.emplace(device, c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device))
      .first->second;
}

bool is_dense_on_host(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_nested();
}

/// Returns a copy in page-locked memory: only from there does a copy to a device run asynchronously.
at::Tensor page_locked(const at::Tensor& tensor) {
  if (tensor.is_pinned()) return tensor;
  // Packed, in the order of the tensor's strides, like the result of Tensor::to().
  return at::empty_like(tensor, tensor.options().pinned_memory(true)).copy_(tensor);
}

}  // namespace

BatchTransfer::BatchTransfer(at::Device device, Convert convert)
    : device_(device), convert_(std::move(convert)) {
  if (device_.is_cpu()) return;
  check_device(device_);
  if (!device_.has_index()) device_ = c10::impl::VirtualGuardImpl(device_.type()).getDevice();
  stream_ = copying_stream(device_);
}

void BatchTransfer::begin(Batch batch) {
  if (!stream_) {
    begun_.push_back({std::move(batch), {}, std::nullopt});
    return;
  }
  Begun next;
  next.batch = map_tensors(convert_(batch), [&](const at::Tensor& tensor) {
    if (!is_dense_on_host(tensor)) return tensor.to(device_, /*non_blocking=*/true);
    const c10::StreamGuard on_copying_stream(*stream_);
    return next.copies.emplace_back(page_locked(tensor).to(device_, /*non_blocking=*/true));
  });
  next.copied.emplace(device_.type());
  next.copied->record(*stream_);
  begun_.push_back(std::move(next));
}

Batch BatchTransfer::take() {
  TORCH_CHECK(!begun_.empty(), "BatchTransfer::take: no batch is on its way; call begin() first");
  const Begun next = std::move(begun_.front());
  begun_.pop_front();
  if (!stream_) return convert_(next.batch);
  const c10::impl::VirtualGuardImpl device(device_.type());
  const c10::Stream computing = device.getStream(device_);
  next.copied->block(computing);
  // If the last handle is dropped while the device still computes with it, the memory stays reserved.
  for (const at::Tensor& copy : next.copies)
    device.recordDataPtrOnStream(copy.storage().data_ptr(), computing);
  return next.batch;
}

}  // namespace mantissa
