#include <dlfcn.h>

#include "mantissa/core/cuda_driver_internal.h"

namespace mantissa {
namespace {

// Copied from cuda.h, which a build without CUDA does not have.
constexpr int64_t kNoDevice = 100;
using Init = int(unsigned flags);
using DriverGetVersion = int(int* version);
using DeviceGet = int(int* device, int ordinal);
using DeviceGetAttribute = int(int* value, int attribute, int device);
constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
using DeviceGetName = int(char* name, int length, int device);
using GetErrorName = int(int status, const char** name);

template <typename Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

std::string cuda_version(int64_t version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// Source: CUDA Toolkit release notes, table "Minimum Required Driver Version for CUDA Minor Version
///         Compatibility".
std::string driver_for(int64_t cuda) {
  switch (cuda / 1000) {
    case 11:
      return "450 or newer";
    case 12:
      return "525 or newer";
    case 13:
      return "580 or newer";
    default:
      return "one for CUDA " + cuda_version(cuda);
  }
}

}  // namespace

CudaDriver ask_cuda_driver(const char* library) {
  CudaDriver driver;
  void* handle = dlopen(library, RTLD_NOW);
  if (!handle) return driver;
  driver.is_loaded = true;
  if (auto* get_version = find<DriverGetVersion>(handle, "cuDriverGetVersion")) {
    int version = 0;
    if (get_version(&version) == 0) driver.version = version;
  }
  if (auto* init = find<Init>(handle, "cuInit")) driver.status = init(0);
  if (driver.status != 0) {
    const char* name = nullptr;
    if (auto* get_name = find<GetErrorName>(handle, "cuGetErrorName"))
      get_name(static_cast<int>(driver.status), &name);
    driver.error = name ? name : "error " + std::to_string(driver.status);
  }
  return driver;
}

int cuda_compute_capability(int device, const char* library) {
  if (const CudaDriver driver = ask_cuda_driver(library); !driver.is_loaded || driver.status != 0) return 0;
  void* const handle = dlopen(library, RTLD_NOW);
  auto* const get = find<DeviceGet>(handle, "cuDeviceGet");
  auto* const attribute = find<DeviceGetAttribute>(handle, "cuDeviceGetAttribute");
  int found = 0, major = 0, minor = 0;
  if (!get || !attribute || get(&found, device) != 0 || attribute(&major, kCapabilityMajor, found) != 0 ||
      attribute(&minor, kCapabilityMinor, found) != 0)
    return 0;
  return 10 * major + minor;
}

std::string cuda_device_name(int device, const char* library) {
  if (const CudaDriver driver = ask_cuda_driver(library); !driver.is_loaded || driver.status != 0) return "";
  void* const handle = dlopen(library, RTLD_NOW);
  auto* const get = find<DeviceGet>(handle, "cuDeviceGet");
  auto* const get_name = find<DeviceGetName>(handle, "cuDeviceGetName");
  int found = 0;
  char name[256] = {};
  if (!get || !get_name || get(&found, device) != 0 || get_name(name, sizeof name - 1, found) != 0) return "";
  return name;
}

std::string why_driver_has_no_device(const CudaDriver& driver, int64_t needed, const char* visible_devices) {
  if (!driver.is_loaded)
    return "the NVIDIA driver is missing (libcuda.so.1 cannot be loaded): install driver " +
           driver_for(needed) + ", or start the container with the GPU (docker run --gpus all)";
  // A driver supports every CUDA version of its own major version.
  if (driver.version != 0 && driver.version / 1000 < needed / 1000)
    return "the NVIDIA driver is too old (it supports CUDA up to " + cuda_version(driver.version) +
           ", and this libtorch needs " + cuda_version(needed) + "): update it to " + driver_for(needed);
  if (driver.status != 0 && driver.status != kNoDevice)
    return "the NVIDIA driver does not start (cuInit: " + driver.error +
           "): check that nvidia-smi works; after an update of the driver restart the machine";
  if (visible_devices)
    return "no GPU is visible (CUDA_VISIBLE_DEVICES is '" + std::string(visible_devices) +
           "'): unset it, or name a GPU that nvidia-smi -L lists";
  return "the NVIDIA driver finds no GPU: check that nvidia-smi lists one";
}

}  // namespace mantissa
