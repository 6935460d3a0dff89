#include "benchmarks/device_facts.h"

#include <array>
#include <cstddef>
#include <dlfcn.h>

#include <ATen/DeviceAccelerator.h>
#include <ATen/Version.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include "mantissa/core/cuda_driver_internal.h"
#include "mantissa/core/device.h"

namespace mantissa {
namespace {

/// NVIDIA's driver API, which libtorch has already loaded. It gives facts that libtorch exposes only to code
/// that is compiled with CUDA's headers.
class Driver {
 public:
  Driver() : library_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    TORCH_CHECK(library_ != nullptr && call("cuInit", 0U) == 0, "libcuda.so.1 does not answer");
  }
  ~Driver() {
    if (library_ != nullptr) dlclose(library_);
  }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  std::string name(int device) const {
    std::array<char, 256> name{};
    call("cuDeviceGetName", name.data(), static_cast<int>(name.size()), handle(device));
    return name.data();
  }

  size_t memory_bytes(int device) const {
    size_t bytes = 0;
    call("cuDeviceTotalMem_v2", &bytes, handle(device));
    return bytes;
  }

 private:
  /// Every function of the API returns 0 on success.
  template <typename... Arguments>
  int call(const char* function, Arguments... arguments) const {
    void* const found = dlsym(library_, function);
    TORCH_CHECK(found != nullptr, "libcuda.so.1 has no ", function);
    return reinterpret_cast<int (*)(Arguments...)>(found)(arguments...);
  }

  int handle(int device) const {
    int handle = 0;
    call("cuDeviceGet", &handle, device);
    return handle;
  }

  void* library_;
};

/// Returns a text such as "9.0".
std::string capability(int device) {
  const int number = cuda_compute_capability(device);
  return std::to_string(number / 10) + "." + std::to_string(number % 10);
}

nlohmann::json cuda_facts(at::Device device) {
  const Driver driver;
  const auto& hooks = at::detail::getCUDAHooks();
  const int index = device.index();
  return {{"device",
           {{"name", driver.name(index)},
            {"index", index},
            {"capability", capability(index)},
            {"memory_bytes", driver.memory_bytes(index)}}},
          {"versions",
           {{"cuda_driver_api", ask_cuda_driver().version},
            {"cuda_runtime", hooks.versionCUDART()},
            {"cudnn", hooks.versionRuntimeCuDNN()}}}};
}

}  // namespace

nlohmann::json device_facts(const std::string& device) {
  nlohmann::json facts;
  try {
    const at::Device found = resolve_device(device);
    facts = found.is_cuda() ? cuda_facts(found)
                            : nlohmann::json{{"device", {{"name", "CPU " + at::get_cpu_capability()}}}};
  } catch (const c10::Error& error) {
    return {{"why_no_device", error.what_without_backtrace()}};
  }
  facts["versions"]["mantissa"] = MANTISSA_VERSION;
  facts["versions"]["libtorch"] = TORCH_VERSION;
  return facts;
}

}  // namespace mantissa
