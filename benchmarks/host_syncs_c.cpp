// The same counter for Python programs, through ctypes: HostSyncs of gpu_parts/peers.py.
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

/// Begins to count on the device of this name: "cuda:0", "cpu". Null, or what is wrong.
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

/// Ends it. JSON: the calls by name.
const char* mantissa_stop_counting() {
  answer = nlohmann::json(syncs->calls()).dump();
  syncs.reset();
  return answer.c_str();
}
}
