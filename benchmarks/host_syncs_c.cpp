// A C interface of HostSyncs for Python programs, used through ctypes by the HostSyncs of gpu_parts/peers.py.
#include <exception>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "benchmarks/host_syncs.h"

namespace {

std::unique_ptr<mantissa::HostSyncs> syncs;
std::string answer;

}  // namespace

extern "C" {

/// Starts to count on the device of this name: "cuda:0", "cpu". Returns null, or an error message.
const char* mantissa_start_counting(const char* device) {
  try {
    syncs.reset();
    syncs = std::make_unique<mantissa::HostSyncs>(at::Device(device));
    return nullptr;
  } catch (const std::exception& error) {
    answer = error.what();
    return answer.c_str();
  }
}

/// Stops counting. Returns the calls by name, as JSON.
const char* mantissa_stop_counting() {
  answer = nlohmann::json(syncs->calls()).dump();
  syncs.reset();
  return answer.c_str();
}
}
