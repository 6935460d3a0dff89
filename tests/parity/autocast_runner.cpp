// Calls operations and a custom function under mantissa::Autocast as described by a job file.
// test_autocast.py compares the results with Python's.
//
//   autocast_runner JOB.json
//
// Job:    "kind" is one of
//         "calls":           "calls" is a list of {"op": "aten::mm", "overload": "", "args": [...], "kwargs":
//                            {...}}; a tensor is {"tensor": its name in the file "tensors"}, a list of them
//                            {"tensors": [names]}. Result: tensor "i.k" is the k-th tensor that call i
//                            returned.
//         "custom_function": "cast_inputs" and "backward_inside" are booleans, "tensors" holds "a" and "b".
//                            Result: "product", "a.grad", "b.grad".
//         "registrations":   prints {"AutocastCPU": [names], "AutocastCUDA": [names]}.
//         "dtype" is the region's, "bfloat16" or "float16"; `tensors` and `output` are safetensors files.
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/view_as_real.h>
#include <torch/csrc/autograd/custom_function.h>

#include <nlohmann/json.hpp>

#include "mantissa/amp/autocast.h"
#include "mantissa/amp/custom_function.h"
#include "mantissa/io/safetensors.h"

namespace mantissa {
namespace {

using Json = nlohmann::json;
using Tensors = std::map<std::string, at::Tensor>;

c10::IValue to_ivalue(const Json& value, const c10::Type& type, const Tensors& tensors) {
  if (value.is_null()) return {};
  if (value.is_object() && value.contains("tensor")) return tensors.at(value["tensor"]);
  if (value.is_object()) {
    std::vector<at::Tensor> list;
    for (const std::string name : value["tensors"]) list.push_back(tensors.at(name));
    return list;
  }
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      return to_ivalue(value, *type.containedType(0), tensors);
    case c10::TypeKind::FloatType:
      return value.get<double>();
    case c10::TypeKind::NumberType:
      return value.is_number_integer() ? c10::IValue(value.get<int64_t>()) : c10::IValue(value.get<double>());
    case c10::TypeKind::BoolType:
      return value.get<bool>();
    case c10::TypeKind::StringType:
      return value.get<std::string>();
    case c10::TypeKind::ListType:
      return value.get<std::vector<int64_t>>();
    default:
      return value.get<int64_t>();
  }
}

std::vector<at::Tensor> call(const Json& job, const Tensors& tensors) {
  const std::string name = job["op"], overload = job["overload"];
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  const auto& parameters = op.schema().arguments();
  torch::jit::Stack stack;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& parameter = parameters[i];
    if (i < job["args"].size())
      stack.push_back(to_ivalue(job["args"][i], *parameter.type(), tensors));
    else if (job["kwargs"].contains(parameter.name()))
      stack.push_back(to_ivalue(job["kwargs"][parameter.name()], *parameter.type(), tensors));
    else
      stack.push_back(parameter.default_value().value());
  }
  op.callBoxed(&stack);
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack)
    if (value.isTensor()) results.push_back(value.toTensor());
  return results;
}

Tensors run_calls(const Json& job, const Tensors& tensors, at::ScalarType dtype) {
  Tensors output;
  for (size_t i = 0; i < job["calls"].size(); ++i) {
    const Autocast region(at::kCPU, {.dtype = dtype});
    const auto results = call(job["calls"][i], tensors);
    for (size_t k = 0; k < results.size(); ++k) {
      const at::Tensor& result = results[k];
      output[std::to_string(i) + "." + std::to_string(k)] =
          (result.is_complex() ? at::view_as_real(result.resolve_conj()) : result).contiguous();
    }
  }
  return output;
}

struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& a_in,
                            const at::Tensor& b_in, bool casts) {
    const CustomForward scope(ctx, at::kCPU,
                              {.cast_inputs = casts ? std::optional(at::kFloat) : std::nullopt});
    const auto [a, b] = scope.inputs(a_in, b_in);
    ctx->save_for_backward({a, b});
    return a.mm(b);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const CustomBackward scope(ctx);
    const auto saved = ctx->get_saved_variables();
    return {gradients[0].mm(saved[1].t()), saved[0].t().mm(gradients[0]), at::Tensor()};
  }
};

Tensors run_custom_function(const Json& job, const Tensors& tensors, at::ScalarType dtype) {
  const auto a = tensors.at("a").clone().requires_grad_(), b = tensors.at("b").clone().requires_grad_();
  at::Tensor product, loss;
  {
    const Autocast region(at::kCPU, {.dtype = dtype});
    product = Product::apply(a, b, job["cast_inputs"].get<bool>());
    loss = product.to(at::kFloat).pow(2).sum();
    if (job["backward_inside"]) loss.backward();
  }
  if (!job["backward_inside"]) loss.backward();
  return {{"product", product.detach()}, {"a.grad", a.grad()}, {"b.grad", b.grad()}};
}

void print_registrations() {
  Json lists;
  for (const auto key : {c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA}) {
    Json& list = lists[c10::toString(key)] = Json::array();
    for (const auto& name : c10::Dispatcher::singleton().getRegistrationsForDispatchKey(key))
      list.push_back(toString(name));
  }
  std::printf("%s\n", lists.dump().c_str());
}

void run(const Json& job) {
  if (job["kind"] == "registrations") {
    print_registrations();
    return;
  }
  at::set_num_threads(1);
  const Tensors tensors = load_safetensors(job["tensors"].get<std::string>()).tensors;
  const auto dtype = job["dtype"] == "float16" ? at::kHalf : at::kBFloat16;
  save_safetensors(job["output"].get<std::string>(), job["kind"] == "calls"
                                                         ? run_calls(job, tensors, dtype)
                                                         : run_custom_function(job, tensors, dtype));
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: autocast_runner JOB.json\n");
    return 2;
  }
  mantissa::run(nlohmann::json::parse(std::ifstream(argv[1])));
  return 0;
}
