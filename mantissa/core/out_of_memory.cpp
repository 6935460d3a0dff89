#include "mantissa/core/out_of_memory.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <unistd.h>

#include <ATen/DeviceAccelerator.h>

#include "mantissa/core/device.h"

namespace mantissa {
namespace {

std::string text_of(int64_t bytes) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  std::array<char, 32> text{};
  if (bytes < 10 * kGiB) return std::to_string(bytes >> 20) + " MiB";
  std::snprintf(text.data(), text.size(), "%.1f GiB", static_cast<double>(bytes) / kGiB);
  return text.data();
}

/// The memory of a CUDA device whose allocator has failed. While the exception propagated, tensors were
/// freed, so by_tensors is the peak; the allocator still holds the same memory.
struct Held {
  int64_t by_allocator = 0, by_tensors = 0;
};
Held held_on(at::Device device) {
  const auto stats = at::accelerator::getDeviceStats(device.index());
  return {stats.reserved_bytes[static_cast<size_t>(at::CachingAllocator::StatType::AGGREGATE)].current,
          peak_memory_bytes(device)};
}

}  // namespace

bool is_out_of_memory(const c10::Error& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error)) return true;
  constexpr auto kTexts = std::to_array<std::string_view>(
      {"DefaultCPUAllocator", "CUDA out of memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED"});
  return std::any_of(kTexts.begin(), kTexts.end(),
                     [&](std::string_view text) { return error.msg().find(text) != std::string::npos; });
}

std::string describe_memory(at::Device device) {
  if (device.is_cuda() && cuda_device_count() > 0) {
    const Held held = held_on(device);
    int64_t total = 0;
    try {
      total = static_cast<int64_t>(at::accelerator::getMemoryInfo(device.index()).second);
    } catch (const c10::Error&) {  // memory is completely full: report the original error instead
      return device.str() + " has too little memory even to report its size";
    }
    return device.str() + " has " + text_of(total) + "; libtorch holds " + text_of(held.by_allocator) +
           " of it, and its tensors took " + text_of(held.by_tensors) + " at their peak";
  }
  const int64_t total = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  return "the machine has " + text_of(total) + ", and this process took " +
         text_of(peak_memory_bytes(at::kCPU)) + " at its peak";
}

std::string fragmentation_cure(at::Device device) {
  if (!device.is_cuda() || cuda_device_count() == 0) return "";
  const Held held = held_on(device);
  const int64_t unused = held.by_allocator - held.by_tensors;
  if (unused < held.by_allocator / 10) return "";
  return "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment, since " + text_of(unused) +
         " are held in pieces too small to use";
}

}  // namespace mantissa
