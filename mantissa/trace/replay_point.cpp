#include "mantissa/trace/replay_point.h"

#include <mutex>
#include <unordered_set>

#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

namespace mantissa {

ReplayPoint::ReplayPoint(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  std::unordered_set<at::Device> devices{at::kCPU};
  for (const at::Tensor& parameter : module.parameters())
    if (parameter.is_cuda()) devices.insert(parameter.device());
  for (const at::Tensor& buffer : module.buffers()) {
    if (!buffer.defined()) continue;
    if (buffer.is_cuda()) devices.insert(buffer.device());
    buffers_.emplace_back(buffer, buffer.clone());
  }
  for (const at::Device device : devices) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generators_.emplace_back(generator, generator.get_state());
  }
}

void ReplayPoint::restore_buffers() const {
  const at::NoGradGuard no_grad;
  for (auto [buffer, value] : buffers_) buffer.copy_(value);
}

void ReplayPoint::restore() const {
  restore_buffers();
  for (auto [generator, state] : generators_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace mantissa
