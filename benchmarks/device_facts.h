#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace mantissa {

/// Returns what a file of results records about `device` ("cpu", "cuda", "cuda:1") and about this program:
/// {"device": {"name", "index", "capability", "memory_bytes"}, "versions": {"mantissa", "libtorch",
/// "cuda_driver_api", "cuda_runtime", "cudnn"}}. If the device is missing, returns {"why_no_device": one
/// line}.
nlohmann::json device_facts(const std::string& device);

}  // namespace mantissa
