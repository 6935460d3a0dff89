#pragma once

#include <memory>
#include <vector>

#include <torch/optim/optimizer.h>

#include <nlohmann/json.hpp>

namespace mantissa {

/// Makes job["optimizer"]: sgd, adam, adamw, adagrad, or one of them with the prefix fused-. Its options have
/// their Python names.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const nlohmann::json& job,
                                                        std::vector<at::Tensor> parameters);

/// Steps an optimizer alone, through given gradients, and writes weights, gradients and states.
///
/// Job:    optimizer and options as above, threads; `tensors`: safetensors with the weights "0", "1", ... and
///         the gradients "<step>.<weight>", any of which may be missing; optionally `scale` and `found_inf`
///         [steps].
/// Result: `output`, safetensors: "<weight>", "<weight>.grad", "<weight>.<state name of Python's>".
void run_optimizer(const nlohmann::json& job);

}  // namespace mantissa
