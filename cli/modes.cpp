#include <fmt/format.h>
#include <string>

#include "cli/commands.h"
#include "mantissa/core/cpu_tier.h"
#include "mantissa/core/device.h"
#include "mantissa/core/suggest.h"
#include "mantissa/kernels/overrides.h"
#include "mantissa/precision/registry.h"

namespace mantissa::cli {
namespace {

const char* word(DtypeSupport support) {
  switch (support) {
    case DtypeSupport::kNative:
      return "native";
    case DtypeSupport::kEmulated:
      return "emulated";
    case DtypeSupport::kUnavailable:
      return "unavailable";
  }
  return "unknown";
}

std::string cpu_kernels() {
  if (!enable_cpu_kernels()) return "libtorch's own, by MANTISSA_CPU_KERNELS=0";
  const std::string used = tier_name(cpu_tier()), had = tier_name(hardware_cpu_tier());
  return "kernels of tier " + used + (used == had ? "" : ", capped by MANTISSA_MAX_ISA; this CPU is " + had);
}

void print_modes() {
  fmt::print("{:<12} {:<8} {:<5} {:<12} {}\n", "mode", "alias", "on", "support", "what it is, and why");
  for (const Mode& mode : modes()) {
    fmt::print("{:<12} {:<8} {:<5} {:<12} {}\n", mode.name, join_names(mode.aliases), "", "", mode.summary);
    for (const c10::DeviceType type : {at::kCPU, at::kCUDA}) {
      const DtypeSupportInfo info = mode_support(mode, at::Device(type));
      fmt::print("{:<12} {:<8} {:<5} {:<12} {}\n", "", "", type == at::kCPU ? "cpu" : "cuda",
                 word(info.support), info.reason);
    }
  }
  fmt::print("\n16-bit products on the CPU: {}\n", cpu_kernels());
}

}  // namespace

void add_modes(CLI::App& app) {
  app.add_subcommand("modes",
                     "Every precision mode: native, emulated or unavailable on this machine, and why")
      ->callback(print_modes);
}

}  // namespace mantissa::cli
