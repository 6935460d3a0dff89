// Steps an 8-bit or 4-bit optimizer, or Muon, through given gradients, and exchanges its state with bitsandbytes:
//
//   optimizer_8bit_runner JOB.json
//
// Job:    `optimizer`: a name of optim/registry.h, with its settings; threads; `tensors`: safetensors with the
//         weights "0", "1", ... and the gradients "<step>.<weight>"; `from` and `to`: the first step and the
//         one behind the last. Optionally a state of bitsandbytes to begin with: `state` {"<weight>":
//         {"step": number, "<name>": name in `tensors`, ...}}, perhaps with the wrapper around the tensors,
//         and `param_groups`. With `muon_options` the optimizer is the class Muon with these options.
// Result: `output`, safetensors: the weights "<weight>" and bitsandbytes's tensors "<weight>.<name>";
//         `output_state`, JSON: the same state, with the tensors' names in place of the tensors. The state of
//         an optimizer that bitsandbytes does not have is ours, without groups.
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <type_traits>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "mantissa/io/safetensors.h"
#include "mantissa/optim/bitsandbytes_state.h"
#include "mantissa/optim/low_bit_optimizer.h"
#include "mantissa/optim/muon.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/optim/registry.h"

namespace mantissa {
namespace {

using Json = nlohmann::json;
using Tensors = std::map<std::string, at::Tensor>;

OptimizerSettings settings_of(const Json& job) {
  OptimizerSettings settings;
  for_each_setting([&](const char* name, auto member) {
    using Value = typename std::remove_reference_t<decltype(settings.*member)>::value_type;
    if (job.contains(name)) settings.*member = job[name].get<Value>();
  });
  return settings;
}

StateValue value_of(const Json& json, const Safetensors& tensors) {
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return tensors.tensors.at(json.get<std::string>()).clone();
  if (json.is_array()) {
    StateList list;
    for (const Json& item : json) list.push_back(value_of(item, tensors));
    return list;
  }
  StateDict dict;
  for (const auto& [name, item] : json.items())
    if (!item.is_null()) dict.emplace(name, value_of(item, tensors));
  return dict;
}

Json json_of(const StateValue& value, const std::string& path, Tensors& tensors) {
  if (const auto* number = value.get_if<int64_t>()) return *number;
  if (const auto* number = value.get_if<double>()) return *number;
  if (const auto* tensor = value.get_if<at::Tensor>()) {
    tensors.emplace(path, tensor->clone());  // safetensors holds no tensor twice
    return path;
  }
  if (const auto* list = value.get_if<StateList>()) {
    Json array = Json::array();
    for (const StateValue& item : *list) array.push_back(json_of(item, path, tensors));
    return array;
  }
  const auto* const dict = value.get_if<StateDict>();
  if (dict == nullptr) return nullptr;
  Json object = Json::object();
  for (const auto& [name, item] : *dict)
    object[name] =
        json_of(item, name.starts_with("__") ? path : path + (path.empty() ? "" : ".") + name, tensors);
  return object;
}

std::unique_ptr<torch::optim::Optimizer> make(const Json& job, const std::vector<at::Tensor>& weights) {
  if (!job.contains("muon_options")) return make_optimizer(job["optimizer"], weights, settings_of(job));
  const Json& given = job["muon_options"];
  MuonOptions options(given.value("lr", 1e-3));
  options.weight_decay(given.value("weight_decay", 0.1)).momentum(given.value("momentum", 0.95));
  options.nesterov(given.value("nesterov", true)).ns_steps(given.value("ns_steps", 5));
  options.eps(given.value("eps", 1e-7));
  if (given.contains("adjust_lr_fn")) options.adjust_lr_fn(given["adjust_lr_fn"].get<std::string>());
  return std::make_unique<Muon>(weights, options);
}

void run(const Json& job) {
  at::set_num_threads(job["threads"]);
  const Safetensors given = load_safetensors(job["tensors"].get<std::string>());
  std::vector<at::Tensor> weights;
  for (size_t i = 0; given.tensors.contains(std::to_string(i)); ++i)
    weights.push_back(given.tensors.at(std::to_string(i)).clone().set_requires_grad(true));
  const auto made = make(job, weights);
  auto& optimizer = dynamic_cast<LowBitOptimizer&>(*made);
  if (job.contains("state")) {
    const StateDict state = {{"state", value_of(job["state"], given)},
                             {"param_groups", value_of(job["param_groups"], given)}};
    load_bitsandbytes_state(optimizer, StateReader(state));
  }
  for (int64_t step = job["from"]; step < job["to"].get<int64_t>(); ++step) {
    for (size_t i = 0; i < weights.size(); ++i)
      weights[i].mutable_grad() = given.tensors.at(std::to_string(step) + "." + std::to_string(i)).clone();
    optimizer.step();
  }
  Tensors result;
  const bool is_theirs = optimizer.is_in_bitsandbytes();
  const StateDict state =
      is_theirs ? bitsandbytes_state(optimizer, job.value("is_wrapped", true)) : optimizer_state(optimizer);
  Json json = {{"state", json_of(state.at("state"), "", result)}};
  if (is_theirs) json["param_groups"] = json_of(state.at("param_groups"), "", result);
  std::ofstream(job["output_state"].get<std::string>()) << json;
  for (size_t i = 0; i < weights.size(); ++i) result[std::to_string(i)] = weights[i].detach();
  save_safetensors(job["output"].get<std::string>(), result);
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  try {
    TORCH_CHECK_VALUE(argc == 2, "usage: optimizer_8bit_runner JOB.json");
    std::ifstream file(argv[1]);
    mantissa::run(nlohmann::json::parse(file));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
