// Compares FP8 products with those in bf16 on one device, casts included.
//
//   gpu_fp8 JOB.json   prints a line of JSON
//
// Job:    "device"; "recipe", a name; "what":
//           "linear": one linear layer of "width" features on "tokens" tokens: its three products;
//           "layer": "layers" TransformerLayers of "width" features with "heads" heads on "batch" sequences of "tokens"
//           tokens, forward and backward, in fp8-mixed and bf16-mixed;
//           "choice": which of FP8 and bf16 a run would choose for a linear layer of that shape.
// Result: "products": "native" or "emulated"; "fp8_ms", "bf16_ms": median times over five blocks of a forward and a
//         backward pass; "from_bf16": the largest relative distance (2-norm) of a result and its gradients from those in bf16; and
//         for "linear" "from_emulation", the same from emulated products of the same codes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <c10/core/DeviceGuard.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/utils.h>

#include <nlohmann/json.hpp>

#include "benchmarks/job_file_internal.h"
#include "mantissa/fp8/fp8_device.h"
#include "mantissa/fp8/layer_speed.h"
#include "mantissa/fp8/linear_fp8.h"
#include "mantissa/fp8/recipe_settings.h"
#include "mantissa/layers/transformer_layer.h"
#include "mantissa/precision/registry.h"

namespace mantissa {
namespace {

using Json = nlohmann::json;

/// What one forward and one backward pass leave.
using Results = std::vector<at::Tensor>;

double ms_of(at::Device device, const std::function<Results()>& pass) {
  const auto wait = [&] {
    if (device.is_cuda()) at::accelerator::synchronizeDevice(device.index());
  };
  constexpr double kEnough = 100;  // ms of a block
  std::vector<double> blocks;
  for (int block = 0; block < 5; ++block) {
    wait();
    const auto begin = std::chrono::steady_clock::now();
    double took = 0;
    int passes = 0;
    do {
      pass();
      wait();
      ++passes;
      took = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    } while (took < kEnough && passes < 200);
    blocks.push_back(took / passes);
  }
  std::nth_element(blocks.begin(), blocks.begin() + 2, blocks.end());
  return blocks[2];
}

/// Returns the largest |got - want| / |want| of the results.
double distance(const Results& got, const Results& want) {
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const at::Tensor a = got[i].to(at::kFloat), b = want[i].to(at::kFloat);
    largest = std::max(largest, ((a - b).norm() / b.norm()).item<double>());
  }
  return largest;
}

/// A linear layer with bf16 weights.
class LinearLayer {
 public:
  LinearLayer(const Json& job, at::Device device) {
    const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
    const int64_t width = job["width"], tokens = job["tokens"];
    x_ = at::randn({tokens, width}, options).set_requires_grad(true);
    weight_ = at::randn({width, width}, options).set_requires_grad(true);
    gradient_ = at::randn({tokens, width}, options);
  }

  Results bf16() { return pass(at::linear(x_, weight_)); }
  Results fp8(const std::shared_ptr<Fp8LinearState>& state) {
    Results results = pass(linear_fp8(x_, weight_, {}, state));
    state->update_scales();
    return results;
  }

 private:
  Results pass(const at::Tensor& y) {
    y.backward(gradient_);
    Results results = {y.detach(), x_.grad(), weight_.grad()};
    x_.mutable_grad().reset(), weight_.mutable_grad().reset();
    return results;
  }

  at::Tensor x_, weight_, gradient_;
};

Json linear(const Json& job, at::Device device, const Fp8Recipe& recipe) {
  LinearLayer layer(job, device);
  const auto state = std::make_shared<Fp8LinearState>(recipe),
             emulated = std::make_shared<Fp8LinearState>(recipe);
  emulated->set_native(Fp8Native::kOff);
  Results got, emulation;
  for (int step = 0; step < 2; ++step) got = layer.fp8(state), emulation = layer.fp8(emulated);
  Json result = {{"from_bf16", distance(got, layer.bf16())}, {"from_emulation", distance(got, emulation)}};
  result["fp8_ms"] = ms_of(device, [&] { return layer.fp8(state); });
  result["bf16_ms"] = ms_of(device, [&] { return layer.bf16(); });
  return result;
}

/// Transformer layers in a mode.
class Layers {
 public:
  Layers(const Json& job, at::Device device, const std::string& mode, const PrecisionOptions& options)
      : precision_(make_precision(mode, device, options)) {
    const int64_t width = job["width"];
    torch::manual_seed(1);
    for (int64_t i = 0; i < job["layers"].get<int64_t>(); ++i)
      layers_->push_back(TransformerLayer(TransformerLayerOptions{.hidden_size = width,
                                                                  .ffn_hidden_size = 4 * width,
                                                                  .num_attention_heads = job["heads"],
                                                                  .hidden_dropout = 0,
                                                                  .attention_dropout = 0}));
    layers_->to(device);
    precision_->convert_module(*layers_);
    x_ = at::randn({job["tokens"].get<int64_t>(), job["batch"].get<int64_t>(), width})
             .to(device)
             .set_requires_grad(true);
  }

  Results pass() {
    at::Tensor y = x_;
    {
      const Scope forward = precision_->forward_context();
      for (const auto& layer : *layers_) y = layer->as<TransformerLayerImpl>()->forward(y);
    }
    y.to(at::kFloat).square().mean().backward();
    Results results = {y.detach(), x_.grad()};
    x_.mutable_grad().reset();
    layers_->zero_grad();
    return results;
  }

 private:
  std::unique_ptr<Precision> precision_;
  torch::nn::ModuleList layers_;
  at::Tensor x_;
};

Json layers(const Json& job, at::Device device, const Fp8Recipe& recipe) {
  Layers fp8(job, device, "fp8-mixed", {.recipe = recipe, .fp8_first_and_last = true}),
      bf16(job, device, "bf16-mixed", {});
  const Results got = fp8.pass(), want = bf16.pass();
  Json result = {{"from_bf16", distance(got, want)}};
  result["fp8_ms"] = ms_of(device, [&] { return fp8.pass(); });
  result["bf16_ms"] = ms_of(device, [&] { return bf16.pass(); });
  return result;
}

Json choice(const Json& job, at::Device device, const Fp8Recipe& recipe) {
  const int64_t width = job["width"];
  const Fp8LayerSpeed speed =
      measure_fp8_layer({recipe, device, at::kBFloat16, at::kFloat, job["tokens"], width, width});
  const bool is_native = fp8_support(device, recipe).support == FormatSupport::kNative;
  return {{"fp8_ms", speed.fp8_seconds * 1e3},
          {"bf16_ms", speed.plain_seconds * 1e3},
          {"chosen", !is_native || speed.is_fp8_faster() ? "fp8" : "bf16"}};
}

Json run(const Json& job) {
  const at::Device device(job["device"].get<std::string>());
  const c10::DeviceGuard device_is_current(device);
  const Fp8Recipe recipe = make_fp8_recipe(job["recipe"], {});
  const std::string what = job["what"];
  torch::manual_seed(1);
  Json result = what == "linear"  ? linear(job, device, recipe)
                : what == "layer" ? layers(job, device, recipe)
                                  : choice(job, device, recipe);
  const bool is_native = fp8_support(device, recipe).support == FormatSupport::kNative;
  result["products"] = is_native ? "native" : "emulated";
  return result;
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) try {
  if (const int status = mantissa::answer_usage(argc, argv, "gpu_fp8 JOB.json"); status >= 0) return status;
  std::puts(mantissa::run(mantissa::read_job(argv[1])).dump().c_str());
  return 0;
} catch (const c10::Error& error) {
  std::fprintf(stderr, "gpu_fp8: %s\n", error.what_without_backtrace());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpu_fp8: %s\n", error.what());
  return 1;
}
