#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include <c10/util/Exception.h>

namespace mantissa {

/// Returns a line of /proc/self/status, in bytes.
inline int64_t process_status_bytes(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  TORCH_CHECK(false, "/proc/self/status has no ", name);
}

inline int64_t resident_bytes() { return process_status_bytes("VmRSS"); }
inline int64_t peak_resident_bytes() { return process_status_bytes("VmHWM"); }

}  // namespace mantissa
