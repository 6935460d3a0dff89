#include "mantissa/trainer/loggers/logger.h"

#include <algorithm>

#include <ATen/ops/item.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <nlohmann/json.hpp>

#include "mantissa/trainer/loggers/log_name_internal.h"

namespace mantissa {

bool is_utf8(const std::string& text) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), is_ascii)) return true;
  try {
    return !nlohmann::json(text).dump().empty();
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

void check_log_name(const char* function, const std::string& name) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  TORCH_CHECK_VALUE(!name.empty() && std::none_of(name.begin(), name.end(), is_control) && is_utf8(name),
                    function, ": the name '", name,
                    "' is empty, is not UTF-8 or has control characters; choose another");
}

void check_metric_name(const char* function, const std::string& name) {
  check_log_name(function, name);
  TORCH_CHECK_VALUE(name != "step" && name != "wall_time", function, ": the name '", name,
                    "' is reserved for a column of the logger; choose another");
}

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
  // On the default stream the copy would wait for everything that training has queued there since.
  const c10::StreamGuard guard(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
  return on_device_->value.item<double>();
}

}  // namespace mantissa
