// A stand-in for libcuda.so.1; environment variables set its answers.
#include <cstdio>
#include <cstdlib>
#include <string>

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = std::atoi(std::getenv("FAKE_CUDA_VERSION"));
  return 0;
}

int cuInit(unsigned /*flags*/) { return std::atoi(std::getenv("FAKE_CUDA_STATUS")); }

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? 0 : 101;
}

/// Answers as an sm_86 device.
int cuDeviceGetAttribute(int* value, int attribute, int /*device*/) {
  *value = attribute == 75 ? 8 : attribute == 76 ? 6 : -1;
  return 0;
}

int cuDeviceGetName(char* name, int length, int /*device*/) {
  std::snprintf(name, static_cast<size_t>(length), "Fake GPU");
  return 0;
}

int cuGetErrorName(int status, const char** name) {
  static std::string text;
  text = "CUDA_ERROR_FAKE_" + std::to_string(status);
  *name = text.c_str();
  return 0;
}
}
