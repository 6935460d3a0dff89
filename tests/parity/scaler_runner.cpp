// Runs sequences of GradScaler calls. tests/parity/test_grad_scaler.py compares them with
// torch.amp.GradScaler.
//
//   scaler_runner < SEQUENCES > RESULTS        one JSON object or array per line, in the same order
//   scaler_runner convert FROM TO              a saved scaler state, loaded into a scaler and saved again;
//                                              .json or .safetensors
//
// Sequence: {"options": {...}, "parameters": [{"values": [...], "dtype": ...}], "optimizers": [{"kind", "lr",
//           "parameters": [indices]}], "calls": [{"op": ..., ...}]}. Numbers may be strings, for inf and nan.
// Result:   for each call {"error", "text"} (empty without one), "stepped" (optimizer steps so far), "value"
//           (what the call returned), and after it "scale", "tracker", "parameters" and "gradients" [bits of
//           float64; null where there is none].
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/sgd.h>

#include <nlohmann/json.hpp>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/core/step_scaling.h"
#include "mantissa/io/safetensors.h"

namespace mantissa {
namespace {

using Json = nlohmann::json;

double number(const Json& value) {
  return value.is_string() ? std::stod(value.get<std::string>()) : value.get<double>();
}

at::Tensor vector(const Json& values, at::ScalarType dtype) {
  std::vector<double> numbers;
  for (const Json& value : values) numbers.push_back(number(value));
  return at::tensor(numbers, at::kDouble).to(dtype);
}

at::ScalarType dtype_of(const std::string& name) {
  if (name == "float16") return at::kHalf;
  if (name == "bfloat16") return at::kBFloat16;
  return name == "float64" ? at::kDouble : at::kFloat;
}

/// Exact for every dtype; all NaNs are equal.
Json bits(double value) {
  return std::bit_cast<int64_t>(std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value);
}

Json bits(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  Json out = Json::array();
  const at::Tensor values = tensor.detach().to(at::kDouble).contiguous();
  for (int64_t i = 0; i < values.numel(); ++i) out.push_back(bits(values.const_data_ptr<double>()[i]));
  return out;
}

/// Like Python's torch.optim.SGD(fused=True), without momentum.
class FusedSgd final : public torch::optim::SGD, public StepSupportsAmpScaling {
 public:
  FusedSgd(std::vector<at::Tensor> parameters, double lr) : SGD(std::move(parameters), lr), lr_(lr) {}
  at::Tensor step(LossClosure) override {
    const at::NoGradGuard no_grad;
    const auto optional = [](const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; };
    // The kernel takes one dtype at a time.
    for (at::Tensor& p : param_groups_[0].params()) {
      if (!p.grad().defined()) continue;
      at::_fused_sgd_({p}, {p.grad()}, {}, 0.0, 0.0, lr_, 0.0, false, false, true, optional(grad_scale),
                      optional(found_inf));
    }
    return {};
  }

 private:
  double lr_;
};

GradScalerState state_from_json(const Json& json) {
  GradScalerState state;
  for (const auto& [key, value] : json.items()) {
    state[key] =
        value.is_number_integer() ? at::Scalar(value.get<int64_t>()) : at::Scalar(value.get<double>());
  }
  return state;
}

Json state_to_json(const GradScalerState& state) {
  Json json = Json::object();
  for (const auto& [key, value] : state) {
    if (value.isFloatingPoint())
      json[key] = value.toDouble();
    else
      json[key] = value.toLong();
  }
  return json;
}

class Sequence {
 public:
  explicit Sequence(const Json& job) : job_(job), scaler_(make_scaler()) {
    for (const Json& p : job["parameters"]) {
      parameters_.push_back(vector(p["values"], dtype_of(p["dtype"])).requires_grad_());
    }
    for (const Json& o : job["optimizers"]) {
      std::vector<at::Tensor> own;
      for (const int i : o["parameters"]) own.push_back(parameters_[i]);
      if (o["kind"] == "fused")
        optimizers_.push_back(std::make_unique<FusedSgd>(own, o["lr"]));
      else
        optimizers_.push_back(std::make_unique<torch::optim::SGD>(own, o["lr"].get<double>()));
    }
  }

  Json run() {
    Json results = Json::array();
    for (const Json& call : job_["calls"]) {
      Json result = {{"error", ""}, {"text", ""}, {"value", nullptr}};
      try {
        result["value"] = make(call);
      } catch (const c10::NotImplementedError& e) {
        result.update({{"error", "NotImplementedError"}, {"text", e.what_without_backtrace()}});
      } catch (const c10::ValueError& e) {
        result.update({{"error", "ValueError"}, {"text", e.what_without_backtrace()}});
      } catch (const c10::Error& e) {
        result.update({{"error", "Error"}, {"text", e.what_without_backtrace()}});
      }
      result["stepped"] = stepped_;
      result["scale"] = bits(scaler_.get_scale());
      result["tracker"] = scaler_.get_growth_tracker();
      for (const at::Tensor& p : parameters_) {
        result["parameters"].push_back(bits(p));
        result["gradients"].push_back(bits(p.grad()));
      }
      results.push_back(std::move(result));
    }
    return results;
  }

 private:
  GradScaler make_scaler() const {
    const Json& o = job_["options"];
    return GradScaler(at::kCPU, {.init_scale = o["init_scale"],
                                 .growth_factor = o["growth_factor"],
                                 .backoff_factor = o["backoff_factor"],
                                 .growth_interval = o["growth_interval"],
                                 .enabled = o["enabled"],
                                 .min_scale = o["min_scale"],
                                 .warn_after_skips = 0});
  }

  Json make(const Json& call) {
    const std::string op = call["op"];
    if (op == "backward") {
      backward(call);
    } else if (op == "zero_grad") {
      optimizer(call).zero_grad();
    } else if (op == "unscale_") {
      scaler_.unscale_(optimizer(call));
    } else if (op == "step") {
      stepped_ += scaler_.step(optimizer(call)) ? 1 : 0;
    } else if (op == "update") {
      scaler_.update();
    } else if (op == "update_number") {
      scaler_.update(number(call["value"]));
    } else if (op == "update_tensor") {
      scaler_.update(vector(call["value"], at::kFloat).reshape(call["shape"].get<std::vector<int64_t>>()));
    } else if (op == "scale") {
      return bits(scaler_.scale(vector(call["value"], dtype_of(call["dtype"]))));
    } else if (op == "scale_nothing") {
      scaler_.scale(std::vector<at::Tensor>());
    } else if (op == "save") {
      saved_ = scaler_.state_dict();
      return state_to_json(saved_);
    } else if (op == "load") {
      scaler_.load_state_dict(saved_);
    } else if (op == "restart") {
      scaler_ = make_scaler();
    } else if (op == "set") {
      scaler_.set_growth_factor(call["growth_factor"]);
      scaler_.set_backoff_factor(call["backoff_factor"]);
      scaler_.set_growth_interval(call["growth_interval"]);
    } else {
      TORCH_CHECK_NOT_IMPLEMENTED(false, "scaler_runner: no call is named ", op);
    }
    return nullptr;
  }

  /// Runs backward on the sum over parameters of (parameter * gradient).sum(), so that these are the
  /// gradients.
  void backward(const Json& call) {
    at::Tensor loss = at::zeros({});
    for (const Json& part : call["gradients"]) {
      const at::Tensor& p = parameters_[part["parameter"].get<size_t>()];
      loss = loss + (p.to(at::kFloat) * vector(part["values"], at::kFloat)).sum();
    }
    (call["scaled"].get<bool>() ? scaler_.scale(loss) : loss).backward();
  }

  torch::optim::Optimizer& optimizer(const Json& call) {
    return *optimizers_[call["optimizer"].get<size_t>()];
  }

  const Json& job_;
  GradScaler scaler_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
  GradScalerState saved_;
  int64_t stepped_ = 0;
};

void convert(const std::filesystem::path& from, const std::filesystem::path& to) {
  GradScaler scaler(at::kCPU, {.hysteresis_steps = 3});
  if (from.extension() == ".json")
    scaler.load_state_dict(state_from_json(Json::parse(std::ifstream(from))));
  else
    scaler.load_state_dict(scaler_state_from_tensors(load_safetensors(from).tensors));
  if (to.extension() == ".json")
    std::ofstream(to) << state_to_json(scaler.state_dict());
  else
    save_safetensors(to, scaler_state_to_tensors(scaler.state_dict()));
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (argc == 4 && std::string(argv[1]) == "convert") {
    mantissa::convert(argv[2], argv[3]);
    return 0;
  }
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::json job = nlohmann::json::parse(line);
    std::cout << mantissa::Sequence(job).run() << "\n";
  }
  return 0;
}
