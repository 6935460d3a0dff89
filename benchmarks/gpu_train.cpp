// Our side of benchmarks/gpu.
//
//   gpu_train --facts DEVICE   prints what device_facts() says
#include <cstdio>
#include <string>

#include "benchmarks/device_facts.h"

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--facts") {
    std::printf("%s\n", mantissa::device_facts(argv[2]).dump().c_str());
    return 0;
  }
  std::fprintf(stderr, "usage: gpu_train --facts DEVICE\n");
  return 2;
}
