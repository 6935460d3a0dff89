// The peak memory of training in each mode, measured by the process's own peak (VmHWM): each mode trains a
// few steps in its own process. `whole` is the peak; `added` leaves out the memory that the process had
// before it made the model, which is libtorch's own. Both are compared with 32-true's. With a mode and a
// model as arguments, the program is that process and prints the two numbers in bytes.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include <c10/util/Exception.h>

#include "benchmarks/process_memory_internal.h"
#include "benchmarks/training_internal.h"
#include "mantissa/precision/init.h"

namespace mantissa {
namespace {

const Case& find(const std::string& name) {
  // As deep as the smallest GPT-2. A step of that would take libtorch's own 16-bit kernels a minute.
  static const Case deep = {"gpt-768-12", [] { return gpt(768, 12); }, tokens};
  if (name == deep.name) return deep;
  for (const Case& each : cases())
    if (each.name == name) return each;
  TORCH_CHECK_VALUE(false, "peak_memory: no model '", name, "'");
}

int train(const std::string& model, const std::string& mode) {
  const Case& each = find(model);
  const int64_t before = peak_resident_bytes();
  torch::manual_seed(1);
  auto precision = make_precision(mode, at::kCPU);
  const auto net = init_module(*precision, at::kCPU, each.make);
  Training training(std::move(precision), net, each.data());
  const double loss = training.loss_after(3);
  if (!(loss > 0 && loss < 100)) return 1;
  std::printf("%lld %lld\n", static_cast<long long>(before), static_cast<long long>(peak_resident_bytes()));
  return 0;
}

struct Peak {
  double whole = 0, added = 0;  // MiB
};

Peak measure(const std::string& self, const std::string& model, const std::string& mode) {
  FILE* const child = popen(("'" + self + "' " + model + " " + mode).c_str(), "r");
  TORCH_CHECK(child != nullptr, "peak_memory: cannot start ", self);
  long long before = 0, peak = 0;
  const int read = std::fscanf(child, "%lld %lld", &before, &peak);
  TORCH_CHECK(pclose(child) == 0 && read == 2, "peak_memory: ", model, " in ", mode, " failed");
  return {static_cast<double>(peak) / (1 << 20), static_cast<double>(peak - before) / (1 << 20)};
}

int table(const std::string& self) {
  std::printf("%-12s %-11s %10s %6s %10s %6s\n", "model", "precision", "whole MiB", "ratio", "added MiB",
              "ratio");
  for (const std::string model : {"gpt-256", "gpt-768", "gpt-768-12", "resnet-tiny"}) {
    Peak base;
    for (const std::string mode : {"32-true", "bf16-mixed", "16-mixed", "bf16-true"}) {
      const Peak peak = measure(self, model, mode);
      if (mode == "32-true") base = peak;
      std::printf("%-12s %-11s %10.0f %6.2f %10.0f %6.2f\n", model.c_str(), mode.c_str(), peak.whole,
                  peak.whole / base.whole, peak.added, peak.added / base.added);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  if (argc == 3) return mantissa::train(argv[1], argv[2]);
  return mantissa::table(std::filesystem::canonical("/proc/self/exe").string());
}
