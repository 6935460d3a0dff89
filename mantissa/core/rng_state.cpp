#include "mantissa/core/rng_state.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/util/Exception.h>

#include "mantissa/core/device.h"

namespace mantissa {
namespace {

at::Generator default_generator(at::Device device) { return at::globalContext().defaultGenerator(device); }

at::Device cuda_device(size_t index) { return {at::kCUDA, static_cast<c10::DeviceIndex>(index)}; }

at::Tensor state_of(at::Device device) {
  at::Generator generator = default_generator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

using Change = std::pair<at::Generator, at::Tensor>;

/// Returns the state to set, after trying it on a copy of the generator.
Change checked(at::Device device, const StateReader& saved) {
  const at::Tensor& bytes = saved.to_tensor();
  at::Generator generator = default_generator(device);
  const std::lock_guard lock(generator.mutex());
  try {
    generator.clone().set_state(bytes);
  } catch (const c10::Error& error) {
    saved.fail("is not a state of the generator of " + device.str() + ": " + error.msg());
  }
  return {generator, bytes};
}

}  // namespace

StateDict rng_state() {
  StateDict state{{"cpu", state_of(at::kCPU)}};
  StateList cuda;
  const auto devices = static_cast<size_t>(cuda_device_count());
  for (size_t i = 0; i < devices; ++i) cuda.emplace_back(state_of(cuda_device(i)));
  if (!cuda.empty()) state.emplace("cuda", std::move(cuda));
  return state;
}

std::vector<std::string> load_rng_state(const StateReader& state) {
  std::vector<Change> changes{checked(at::kCPU, state.at("cpu"))};
  std::vector<std::string> left_alone;
  const auto cuda = state.find("cuda");
  const size_t saved = cuda ? cuda->size() : 0;
  const auto devices = static_cast<size_t>(cuda_device_count());
  for (size_t i = 0; i < std::max(saved, devices); ++i) {
    if (i < saved && i < devices) {
      changes.push_back(checked(cuda_device(i), cuda->at(i)));
    } else {
      left_alone.push_back(cuda_device(i).str());
    }
  }
  for (auto& [generator, bytes] : changes) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(bytes);
  }
  return left_alone;
}

}  // namespace mantissa
