// What autograd keeps between the forward and the backward pass, in bytes that libtorch's allocator has given out:
//
//   saved_activations_bench
//
// First the four linear layers of a GPT's block. Their kept bytes for T and 2 T tokens give the bytes for each value of an
// input and, as the rest, for each value of a weight. The program ends with an error if a mode with FP8 products keeps more
// than its codes and scales. Then a step of a whole GPT, with what its forward pass leaves and the peak of the step.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/randn.h>
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include "benchmarks/training_internal.h"

namespace mantissa {
namespace {

/// Counts the bytes that this thread has allocated, minus those that it has freed.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    now += size;
    peak = std::max(peak, now);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t now = 0, peak = 0;
};

struct Mode {
  std::string label, name;
  std::optional<Fp8Recipe> recipe = {};
  double most_bytes = 4;  ///< for each value of an input

  std::unique_ptr<Precision> make() const {
    PrecisionOptions options = {.recipe = recipe};
    if (recipe) options.fp8_first_and_last = true;
    return make_precision(name, at::kCPU, options);
  }
};

std::vector<Mode> modes() {
  return {{"32-true", "32-true"},
          {"bf16-mixed", "bf16-mixed", {}, 2},
          {"DelayedScaling", "fp8-mixed", DelayedScaling(), 1.001},
          {"Float8CurrentScaling", "fp8-mixed", Float8CurrentScaling(), 1.001},
          {"Float8BlockScaling", "fp8-mixed", Float8BlockScaling(), 1 + 4.0 / 128},
          {"MXFP8BlockScaling", "fp8-mixed", MXFP8BlockScaling(), 1 + 1.0 / 32},
          {"NVFP4BlockScaling", "fp8-mixed", NVFP4BlockScaling(), 0.5 + 1.001 / 16}};
}

/// Returns the bytes that live with the graph of a layer, whose input is the result of another operation.
int64_t kept_by(const Precision& precision, torch::nn::LinearImpl& layer, int64_t tokens) {
  const at::ScalarType dtype = precision.traits().compute == Format::kBFloat16 ? at::kBFloat16 : at::kFloat;
  const at::Tensor source = at::randn({tokens, layer.options.in_features()}).to(dtype).requires_grad_();
  const auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  at::Tensor y;
  {
    const Scope forward = precision.forward_context();
    y = layer.forward(source + 0);
  }
  return live->now - static_cast<int64_t>(y.nbytes());
}

void print_layers(const Mode& mode, int64_t width) {
  constexpr int64_t kTokens = 512;
  int64_t once = 0, twice = 0, inputs = 0, weights = 0;
  for (const auto& [in, out] :
       {std::pair(width, 3 * width), {width, width}, {width, 4 * width}, {4 * width, width}}) {
    for (const int64_t tokens : {kTokens, 2 * kTokens}) {
      const auto precision = mode.make();
      torch::nn::Linear layer(in, out);
      precision->convert_module(*layer);
      (tokens == kTokens ? once : twice) += kept_by(*precision, *layer, tokens);
    }
    inputs += in * kTokens;
    weights += in * out;
  }
  const double for_input = static_cast<double>(twice - once) / static_cast<double>(inputs),
               for_weight = static_cast<double>(2 * once - twice) / static_cast<double>(weights);
  TORCH_CHECK(for_input > 0.4 && for_input <= mode.most_bytes, "saved_activations: ", mode.label, " keeps ",
              for_input, " bytes for each value of an input, and ", mode.most_bytes, " is the most");
  std::printf("%-21s %6lld %16.4f %16.4f\n", mode.label.c_str(), static_cast<long long>(width), for_input,
              for_weight);
}

void print_step(const Mode& mode, int64_t width, double& base_kept, double& base_peak) {
  torch::manual_seed(1);
  const auto precision = mode.make();
  const auto net = gpt(width);
  const Data data = tokens();
  precision->convert_module(*net);
  FusedAdamW optimizer(net->parameters(), AdamWOptions(1e-3));
  precision->setup_optimizer(optimizer);
  int64_t kept = 0, peak = 0;
  for (int step = 0; step < 2; ++step) {  // the first one allocates the optimizer's state
    optimizer.zero_grad();
    const auto live = std::make_shared<LiveBytes>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
    at::Tensor loss;
    {
      const Scope forward = precision->forward_context();
      const at::Tensor y = net->forward(precision->convert_input(data.batch));
      loss = at::cross_entropy_loss(y.reshape({data.targets.numel(), -1}), data.targets);
    }
    kept = live->now;
    precision->backward(loss);
    precision->optimizer_step(optimizer);
    peak = live->peak;
    const double value = loss.item<double>();
    TORCH_CHECK(value > 0 && value < 100, "saved_activations: the loss in ", mode.label, " is ", value);
  }
  const auto mebibytes = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  if (mode.name == "32-true") base_kept = mebibytes(kept), base_peak = mebibytes(peak);
  std::printf("%-21s %6lld %10.1f %6.2f %10.1f %6.2f\n", mode.label.c_str(), static_cast<long long>(width),
              mebibytes(kept), mebibytes(kept) / base_kept, mebibytes(peak), mebibytes(peak) / base_peak);
}

void run() {
  std::printf("%-21s %6s %16s %16s\n", "linear layers", "width", "B/value of input", "B/value of weight");
  for (const Mode& mode : modes()) print_layers(mode, 256);
  std::printf("\n%-21s %6s %10s %6s %10s %6s\n", "step of a GPT", "width", "kept MiB", "ratio", "peak MiB",
              "ratio");
  for (const int64_t width : {256, 768}) {
    double base_kept = 0, base_peak = 0;
    for (const Mode& mode : modes()) print_step(mode, width, base_kept, base_peak);
  }
}

}  // namespace
}  // namespace mantissa

int main() {
  try {
    mantissa::run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
