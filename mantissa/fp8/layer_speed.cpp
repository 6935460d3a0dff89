#include "mantissa/fp8/layer_speed.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <c10/util/Exception.h>
#include <c10/util/overloaded.h>

#include "mantissa/core/cpu_features.h"
#include "mantissa/core/cuda_driver_internal.h"
#include "mantissa/core/formats.h"
#include "mantissa/fp8/layer_speed_internal.h"
#include "mantissa/fp8/linear_fp8.h"

namespace mantissa {
namespace {

void wait_for(at::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The tensors of a layer's three products.
struct Layer {
  at::Tensor x, weight, gradient;

  template <class Forward>
  void run(const Forward& forward) const {
    const at::AutoGradMode with_graph(true);
    forward(x, weight).backward(gradient);
    x.mutable_grad().reset(), weight.mutable_grad().reset();
  }
};

/// Returns numbers of all sizes up to 1. They are not random, because a run's random numbers must not depend on this.
at::Tensor numbers(int64_t rows, int64_t cols, at::ScalarType dtype, at::Device device) {
  return at::arange(rows * cols, at::TensorOptions(device).dtype(at::kFloat))
      .sin_()
      .view({rows, cols})
      .to(dtype);
}

Layer layer_of(const Fp8LayerShape& shape) {
  const at::NoGradGuard no_graph;
  return {numbers(shape.tokens, shape.in, shape.input, shape.device).set_requires_grad(true),
          numbers(shape.out, shape.in, shape.weight, shape.device).set_requires_grad(true),
          numbers(shape.tokens, shape.out, shape.input, shape.device)};
}

std::string name_of(at::ScalarType dtype) {
  const auto format = format_of(dtype);
  return format ? std::string(info(*format).name) : c10::toString(dtype);
}

std::string key_of(const Fp8LayerShape& shape) {
  const std::string weight =
      shape.weight == shape.input ? std::string() : c10::str("-", name_of(shape.weight));
  return c10::str(fp8::variant_of(shape.recipe), '.', name_of(shape.input), weight, '.', shape.in, "-to-",
                  shape.out, '.', shape.tokens, "-tokens");
}

constexpr const char* kFp8 = "fp8";
constexpr const char* kPlain = "plain";

std::optional<Fp8LayerSpeed> speed_of(const std::string& key, const std::vector<KernelTiming>& row) {
  if (row.size() != 2 || row[0].kernel != kFp8 || row[1].kernel != kPlain) return std::nullopt;
  return Fp8LayerSpeed{key, row[0].seconds, row[1].seconds, "cached"};
}

std::optional<SecondsOf> injected;

}  // namespace

double seconds_on(at::Device device, const std::function<void()>& run) {
  constexpr double kEnough = 5e-3;
  constexpr int kMaxCalls = 64;
  for (int i = 0; i < 2; ++i) run();  // the first calls choose algorithms and reserve memory
  wait_for(device);
  const auto begin = std::chrono::steady_clock::now();
  int calls = 0;
  for (int more = 1; calls < kMaxCalls && seconds_since(begin) < kEnough; more *= 2) {
    for (int i = 0; i < more; ++i) run();
    wait_for(device);
    calls += more;
  }
  return seconds_since(begin) / calls;
}

Fp8LayerSpeed measure_fp8_layer(const Fp8LayerShape& shape, const SecondsOf& seconds_of) {
  const Layer layer = layer_of(shape);
  const auto state = std::make_shared<Fp8LinearState>(shape.recipe);
  const double fp8 = seconds_of(shape.device, [&] {
    layer.run(
        [&](const at::Tensor& x, const at::Tensor& weight) { return linear_fp8(x, weight, {}, state); });
  });
  const double plain = seconds_of(shape.device, [&] {
    layer.run([&](const at::Tensor& x, const at::Tensor& weight) {
      return at::linear(x, weight.to(x.scalar_type()));
    });
  });
  return {key_of(shape), fp8, plain, "measured"};
}

namespace fp8 {

std::string variant_of(const Fp8Recipe& recipe) {
  const auto format = [](const auto& each) {
    if (each.fp8_format == std::decay_t<decltype(each)>{}.fp8_format) return "";
    return each.fp8_format == Fp8Format::kHybrid ? "-HYBRID" : "-E4M3";
  };
  const auto square = [](const auto& each) {
    if (each.enable_2d_quantization == std::decay_t<decltype(each)>{}.enable_2d_quantization) return "";
    return each.enable_2d_quantization ? "-2d" : "-1d";
  };
  const std::string settings = std::visit(
      c10::overloaded([&](const DelayedScaling& each) { return c10::str(format(each)); },
                      [&](const Float8CurrentScaling& each) {
                        return c10::str(format(each), each.scale.power_of_two ? "-powers-of-2" : "");
                      },
                      [&](const Float8BlockScaling& each) {
                        return c10::str(format(each), each.power_of_two ? "" : "-any-scale");
                      },
                      [&](const MXFP8BlockScaling& each) { return c10::str(format(each), square(each)); },
                      [&](const NVFP4BlockScaling& each) {
                        return c10::str(square(each), each.random_hadamard_transform ? "" : "-no-transform",
                                        each.stochastic_rounding ? "" : "-nearest");
                      }),
      recipe);
  return c10::str(recipe_name(recipe), settings);
}

Fp8LayerSpeed LayerSpeeds::of(const Fp8LayerShape& shape) {
  Fp8LayerShape rounded = shape;
  rounded.tokens =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, shape.tokens))));
  const std::string key = key_of(rounded);
  const std::lock_guard lock(mutex_);
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  const auto cached = speed_of(key, cache_.timings(key));
  const Fp8LayerSpeed speed = cached ? *cached : measure_fp8_layer(rounded, seconds_of_);
  if (!cached) cache_.keep({{key, {{kFp8, speed.fp8_seconds}, {kPlain, speed.plain_seconds}}}});
  if (!speed.is_fp8_faster())
    TORCH_WARN("FP8: layers ", key, " compute in ", name_of(shape.input), " on ", shape.device,
               ", because their products take ", speed.fp8_seconds * 1e3, " ms in FP8 and ",
               speed.plain_seconds * 1e3, " ms in ", name_of(shape.input),
               "; fp8_native required computes them in FP8 all the same");
  known_.emplace(key, speed);
  return speed;
}

std::vector<Fp8LayerSpeed> LayerSpeeds::all() {
  const std::lock_guard lock(mutex_);
  std::vector<Fp8LayerSpeed> all;
  for (const auto& [key, row] : cache_.rows())
    if (const auto cached = speed_of(key, row.timings); cached && !known_.contains(key))
      all.push_back(*cached);
  for (const auto& [key, speed] : known_) all.push_back(speed);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.layer < b.layer; });
  return all;
}

namespace {

std::string name_of_device(at::Device device) {
  return device.is_cuda() ? cuda_device_name(device.index()) : cpu_model();
}

/// The speeds of each device that was asked for.
struct Devices {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<LayerSpeeds>> speeds;
};

Devices& devices() {
  static Devices all;
  return all;
}

}  // namespace

LayerSpeeds& layer_speeds(at::Device device) {
  if (!device.is_cpu() && !device.has_index()) device.set_index(at::accelerator::getDeviceIndex());
  const std::lock_guard lock(devices().mutex);
  std::unique_ptr<LayerSpeeds>& speeds = devices().speeds[device.str()];
  // A device without a name has no cache.
  if (!speeds)
    speeds = std::make_unique<LayerSpeeds>(injected ? "" : name_of_device(device),
                                           injected ? *injected : SecondsOf(seconds_on));
  return *speeds;
}

InjectedTimer::InjectedTimer(const SecondsOf& seconds_of) {
  const std::lock_guard lock(devices().mutex);
  devices().speeds.clear();
  injected = seconds_of;
}

InjectedTimer::~InjectedTimer() {
  const std::lock_guard lock(devices().mutex);
  devices().speeds.clear();
  injected.reset();
}

}  // namespace fp8

std::vector<Fp8LayerSpeed> fp8_layer_speeds(at::Device device) { return fp8::layer_speeds(device).all(); }

}  // namespace mantissa
