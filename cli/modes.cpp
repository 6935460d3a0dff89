#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <vector>

#include "cli/all_modes.h"
#include "cli/commands.h"
#include "cli/mode_speed.h"
#include "mantissa/core/cpu_features.h"
#include "mantissa/core/device.h"
#include "mantissa/core/suggest.h"
#include "mantissa/fp8/fp8_device.h"
#include "mantissa/fp8/layer_speed.h"
#include "mantissa/kernels/aten/choice.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/precision/registry.h"

namespace mantissa::cli {
namespace {

const char* word(FormatSupport support) {
  switch (support) {
    case FormatSupport::kNative:
      return "native";
    case FormatSupport::kEmulated:
      return "emulated";
    case FormatSupport::kUnavailable:
      return "unavailable";
  }
  return "unknown";
}

std::string cpu_kernels() {
  if (!enable_cpu_kernels()) return "libtorch's own, by MANTISSA_CPU_KERNELS=0";
  const std::string used = tier_name(cpu_tier()), had = tier_name(hardware_cpu_tier());
  return "the fastest of libtorch's and Mantissa's, up to tier " + used +
         (used == had ? "" : ", capped by MANTISSA_MAX_ISA; this CPU is " + had) +
         "; `mantissa modes --kernels` lists them";
}

/// Returns the speed of a step on the CPU. It is measured, because the instructions that a CPU has may be
/// slower than those they replace.
std::string cpu_speed(const Mode& mode, const std::vector<ModeSpeed>& speeds) {
  const auto speed = std::find_if(speeds.begin(), speeds.end(),
                                  [&](const ModeSpeed& each) { return each.mode == mode.name; });
  if (speed != speeds.end())
    return fmt::format(
        "a step takes {:.2f} (small GPT) and {:.2f} (small ResNet) of its time in 32-true here", speed->gpt,
        speed->resnet);
  return mode.historical ? "an older name, see its summary" : "the reference for the others";
}

/// Prints the layers that were measured in FP8 on the first GPU.
void print_fp8_layers() {
  if (cuda_device_count() == 0)
    return fmt::print(
        "\nFP8 layers are measured where a GPU multiplies FP8 codes itself; no GPU can be used here\n");
  fmt::print("\n{:<64} {:>12} {:>12}  {}\n", "FP8 layer on cuda:0", "ms in FP8", "ms without", "computes in");
  for (const Fp8LayerSpeed& row : fp8_layer_speeds(at::Device(at::kCUDA, 0)))
    fmt::print("{:<64} {:>12.3f} {:>12.3f}  {}\n", row.layer, row.fp8_seconds * 1e3, row.plain_seconds * 1e3,
               row.is_fp8_faster() ? "FP8" : "the dtype of its input");
}

/// Returns which recipes the device multiplies by instructions of its own.
std::string native_recipes(at::Device device) {
  const std::vector<Fp8Recipe> recipes = {DelayedScaling(), Float8CurrentScaling(), Float8BlockScaling(),
                                          MXFP8BlockScaling(), NVFP4BlockScaling()};
  std::vector<std::string> native, emulated;
  for (const Fp8Recipe& recipe : recipes)
    (fp8_support(device, recipe).support == FormatSupport::kNative ? native : emulated)
        .emplace_back(recipe_name(recipe));
  return "; native: " + (native.empty() ? "none" : join_names(native)) +
         "; emulated: " + (emulated.empty() ? "none" : join_names(emulated));
}

void print_modes() {
  const size_t width = mode_column_width();
  fmt::print("{:<{}} {:<8} {:<5} {:<12} {}\n", "mode", width, "alias", "on", "support",
             "what it is, and why");
  const std::string kernels = cpu_kernels();  // its errors come before anything that takes time
  const std::vector<ModeSpeed> speeds = measure_modes();
  const bool has_gpu = cuda_device_count() > 0;  // without a GPU, every mode has the same reason
  for (const Mode& mode : modes()) {
    fmt::print("{:<{}} {:<8} {:<5} {:<12} {}\n", mode.name, width, join_names(mode.aliases), "", "",
               mode.summary);
    // Whether 16-bit products are emulated shows in the speed alone.
    const bool is_fp8 = mode.traits.layer_products == Format::kFloat8E4M3;
    const FormatSupportInfo on_cpu = mode_support(mode, at::kCPU);
    fmt::print("{:<{}} {:<8} {:<5} {:<12} {}\n", "", width, "", "cpu", is_fp8 ? word(on_cpu.support) : "yes",
               (is_fp8 ? on_cpu.reason + "; " : "") + cpu_speed(mode, speeds));
    const FormatSupportInfo info = mode_support(mode, at::Device(at::kCUDA));
    fmt::print("{:<{}} {:<8} {:<5} {:<12} {}\n", "", width, "", "cuda", word(info.support),
               has_gpu ? info.reason + (is_fp8 ? native_recipes(at::kCUDA) : "") : "see below");
  }
  if (!has_gpu) fmt::print("\nno GPU can be used: {}\n", why_no_cuda());
  fmt::print("\n16-bit operations on the CPU: {}\n", kernels);
}

void print_kernels() {
  const std::string kernels = cpu_kernels();
  fmt::print("{}, {}\n", cpu_model().empty() ? "this CPU" : cpu_model(), kernels);
  fmt::print("{:<6} {:<32} {:<12} {:<9} {:>9}  {}\n", "dtype", "family", "kernel", "why", "/ float32",
             "microseconds on one thread");
  for (const KernelChoice& row : cpu_kernel_table()) {
    std::string timings;
    for (const KernelTiming& timing : row.timings)
      timings += fmt::format("{}{} {:.1f}", timings.empty() ? "" : ", ", timing.kernel, 1e6 * timing.seconds);
    fmt::print("{:<6} {:<32} {:<12} {:<9} {:>9.2f}  {}\n", row.dtype, row.family, row.kernel, row.source,
               row.over_float32, timings);
  }
  print_fp8_layers();
}

}  // namespace

void add_modes(CLI::App& app) {
  CLI::App* const sub = app.add_subcommand(
      "modes", "Every precision mode: whether it runs on this machine, how fast or why not");
  const auto kernels = std::make_shared<bool>(false);
  sub->add_flag(
      "--kernels", *kernels,
      "print instead the kernel chosen for each 16-bit operation, and its time, and the times of FP8 layers");
  sub->callback([kernels] { *kernels ? print_kernels() : print_modes(); });
}

}  // namespace mantissa::cli
