// A stand-in for libcuda.so.1 that answers what the environment tells it to.
#include <cstdlib>
#include <string>

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = std::atoi(std::getenv("FAKE_CUDA_VERSION"));
  return 0;
}

int cuInit(unsigned /*flags*/) { return std::atoi(std::getenv("FAKE_CUDA_STATUS")); }

int cuGetErrorName(int status, const char** name) {
  static std::string text;
  text = "CUDA_ERROR_FAKE_" + std::to_string(status);
  *name = text.c_str();
  return 0;
}
}
