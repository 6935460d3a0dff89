#include "optimizer_job.h"

#include <map>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include "mantissa/io/safetensors.h"
#include "mantissa/optim/adamw.h"
#include "mantissa/optim/fused_adagrad.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/optim/sgd.h"

namespace mantissa {
namespace {

AdamOptions adam_options(const nlohmann::json& job, const AdamOptions& defaults) {
  return AdamOptions(job["lr"])
      .betas({job.value("beta1", 0.9), job.value("beta2", 0.999)})
      .eps(job.value("eps", defaults.eps()))
      .weight_decay(job.value("weight_decay", defaults.weight_decay()))
      .amsgrad(job.value("amsgrad", false))
      .maximize(job.value("maximize", false));
}

SGDOptions sgd_options(const nlohmann::json& job) {
  return SGDOptions(job["lr"])
      .momentum(job.value("momentum", 0.0))
      .dampening(job.value("dampening", 0.0))
      .weight_decay(job.value("weight_decay", 0.0))
      .nesterov(job.value("nesterov", false))
      .maximize(job.value("maximize", false));
}

AdagradOptions adagrad_options(const nlohmann::json& job) {
  return AdagradOptions(job["lr"])
      .lr_decay(job.value("lr_decay", 0.0))
      .weight_decay(job.value("weight_decay", 0.0))
      .initial_accumulator_value(job.value("initial_accumulator_value", 0.0))
      .maximize(job.value("maximize", false));
}

std::map<std::string, at::Tensor> tensors_of(const torch::optim::OptimizerParamState& state) {
  if (const auto* adam = dynamic_cast<const AdamParamState*>(&state)) {
    return {{"step", adam->step()},
            {"exp_avg", adam->exp_avg()},
            {"exp_avg_sq", adam->exp_avg_sq()},
            {"max_exp_avg_sq", adam->max_exp_avg_sq()}};
  }
  if (const auto* sgd = dynamic_cast<const SGDParamState*>(&state))
    return {{"momentum_buffer", sgd->momentum_buffer()}};
  const auto& adagrad = dynamic_cast<const AdagradParamState&>(state);
  return {{"step", adagrad.step()}, {"sum", adagrad.sum()}};
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const nlohmann::json& job,
                                                        std::vector<at::Tensor> parameters) {
  const std::string name = job["optimizer"];
  if (name == "sgd") return std::make_unique<SGD>(std::move(parameters), sgd_options(job));
  if (name == "adam") return std::make_unique<Adam>(std::move(parameters), adam_options(job, AdamOptions()));
  if (name == "adamw")
    return std::make_unique<AdamW>(std::move(parameters), adam_options(job, AdamWOptions()));
  if (name == "fused-sgd") return std::make_unique<FusedSGD>(std::move(parameters), sgd_options(job));
  if (name == "fused-adam")
    return std::make_unique<FusedAdam>(std::move(parameters), adam_options(job, AdamOptions()));
  if (name == "fused-adamw")
    return std::make_unique<FusedAdamW>(std::move(parameters), adam_options(job, AdamWOptions()));
  TORCH_CHECK_VALUE(name == "fused-adagrad", "parity_runner: no optimizer is called ", name);
  return std::make_unique<FusedAdagrad>(std::move(parameters), adagrad_options(job));
}

void run_optimizer(const nlohmann::json& job) {
  at::set_num_threads(job["threads"]);
  const auto tensors = load_safetensors(job["tensors"].get<std::string>()).tensors;
  std::vector<at::Tensor> parameters;
  for (size_t i = 0; tensors.count(std::to_string(i)) != 0; ++i)
    parameters.push_back(tensors.at(std::to_string(i)).clone().set_requires_grad(true));
  const auto optimizer = make_optimizer(job, parameters);
  auto* const scaling = dynamic_cast<StepSupportsAmpScaling*>(optimizer.get());

  const std::vector<double> found_inf = job["found_inf"];
  for (size_t step = 0; step < found_inf.size(); ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto gradient = tensors.find(std::to_string(step) + "." + std::to_string(i));
      parameters[i].mutable_grad() = gradient == tensors.end() ? at::Tensor() : gradient->second.clone();
    }
    if (job.contains("scale")) {
      scaling->grad_scale = at::full({}, job["scale"].get<double>());
      scaling->found_inf = at::full({}, found_inf[step]);
    }
    optimizer->step();
  }

  std::map<std::string, at::Tensor> result;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string name = std::to_string(i);
    result[name] = parameters[i].detach();
    if (parameters[i].grad().defined()) result[name + ".grad"] = parameters[i].grad();
    const auto state = optimizer->state().find(parameters[i].unsafeGetTensorImpl());
    if (state == optimizer->state().end()) continue;
    for (const auto& [key, tensor] : tensors_of(*state->second))
      if (tensor.defined()) result[name + "." + key] = tensor;
  }
  save_safetensors(job["output"].get<std::string>(), result);
}

}  // namespace mantissa
