#include "mantissa/trainer/logger.h"

#include <ATen/ops/item.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace mantissa {

struct MetricValue::OnDevice {
  explicit OnDevice(const at::Tensor& tensor) : value(tensor.detach()), computed(tensor.device().type()) {
    computed.record(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
  }
  at::Tensor value;
  c10::Event computed;
};

MetricValue::MetricValue(const at::Tensor& value) {
  TORCH_CHECK_VALUE(value.defined() && value.numel() == 1 && !value.is_complex() && !value.is_meta(),
                    "log_metrics: a metric is one real number, got ",
                    value.defined() ? c10::str("a tensor of ", value.dtype(), " with shape ", value.sizes())
                                    : "an undefined tensor",
                    "; reduce it first, for example with .mean()");
  if (value.is_cpu()) {
    value_ = value.item<double>();
  } else {
    on_device_ = std::make_shared<const OnDevice>(value);
  }
}

double MetricValue::read() const {
  if (!on_device_) return value_;
  const at::Device device = on_device_->value.device();
  on_device_->computed.synchronize();
  // On the default stream the copy would wait for all that training has queued there since.
  const c10::StreamGuard guard(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
  return on_device_->value.item<double>();
}

}  // namespace mantissa
