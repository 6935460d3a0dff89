#include "mantissa/models/script_model.h"

#include <exception>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "mantissa/models/config_fields_internal.h"

namespace mantissa {
namespace {

using Script = torch::jit::Module;

void register_tensors(torch::nn::Module& module, const Script& script) {
  for (const auto& item : script.named_parameters(/*recurse=*/false))
    module.register_parameter(item.name, item.value, item.value.requires_grad());
  for (const auto& item : script.named_buffers(/*recurse=*/false))
    module.register_buffer(item.name, item.value);
}

/// A module without a counterpart in libtorch.
class ScriptPart final : public torch::nn::Module {
 public:
  explicit ScriptPart(const std::string& name) : Module(name) {}
};

/// Returns the script's tensor of this name; undefined if there is none.
at::Tensor tensor_of(const Script& script, const char* name) {
  if (!script.hasattr(name)) return {};
  const c10::IValue value = script.attr(name);
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

/// A torch::nn::Linear with the script's tensors instead of its own.
class ScriptLinear final : public torch::nn::LinearImpl {
 public:
  explicit ScriptLinear(const Script& script)
      : LinearImpl(torch::nn::LinearOptions(1, 1).bias(tensor_of(script, "bias").defined())) {
    weight = parameters_["weight"] = tensor_of(script, "weight");
    if (options.bias()) bias = parameters_["bias"] = tensor_of(script, "bias");
    options.in_features(weight.size(1)).out_features(weight.size(0));
  }
};

/// A batch norm of libtorch with the script's tensors. Its other options are not those of the script, whose forward() is called.
template <typename BatchNorm>
class ScriptBatchNorm final : public BatchNorm {
 public:
  explicit ScriptBatchNorm(Script script)
      : BatchNorm(torch::nn::BatchNormOptions(1)
                      .affine(tensor_of(script, "weight").defined())
                      .track_running_stats(tensor_of(script, "running_mean").defined())) {
    if (this->options.affine()) {
      this->weight = this->parameters_["weight"] = tensor_of(script, "weight");
      this->bias = this->parameters_["bias"] = tensor_of(script, "bias");
    }
    if (!this->options.track_running_stats()) return;
    share(script, "running_mean", this->running_mean);
    share(script, "running_var", this->running_var);
    share(script, "num_batches_tracked", this->num_batches_tracked);
  }

 private:
  /// Registered buffers cannot be replaced, so the script gets that of the module, with its own values.
  static void share(Script& script, const char* name, at::Tensor& buffer) {
    buffer.set_data(tensor_of(script, name));
    script.setattr(name, buffer);
  }
};

/// Returns the Python class of a script's module, such as "torch.nn.modules.linear.Linear", without the marks that TorchScript
/// adds to tell equal names apart.
std::string class_of(const Script& script) {
  std::string name;
  const auto qualified = script.type()->name();
  if (!qualified) return name;
  for (const std::string& part : qualified->atoms())
    if (part != "__torch__" && !part.starts_with("___torch_mangle_"))
      name += (name.empty() ? "" : ".") + part;
  return name;
}

/// Returns a module that has the script's tensors, without its parts.
std::shared_ptr<torch::nn::Module> mirror_of(const Script& script) {
  const std::string name = class_of(script);
  const at::Tensor weight = tensor_of(script, "weight");
  if (name == "torch.nn.modules.linear.Linear" && weight.defined() && weight.dim() == 2)
    return std::make_shared<ScriptLinear>(script);
  if (name == "torch.nn.modules.batchnorm.BatchNorm1d")
    return std::make_shared<ScriptBatchNorm<torch::nn::BatchNorm1dImpl>>(script);
  if (name == "torch.nn.modules.batchnorm.BatchNorm2d")
    return std::make_shared<ScriptBatchNorm<torch::nn::BatchNorm2dImpl>>(script);
  if (name == "torch.nn.modules.batchnorm.BatchNorm3d")
    return std::make_shared<ScriptBatchNorm<torch::nn::BatchNorm3dImpl>>(script);
  auto part = std::make_shared<ScriptPart>(name);
  register_tensors(*part, script);
  return part;
}

void add_parts(torch::nn::Module& module, const Script& script) {
  for (const auto& item : script.named_children()) {
    const auto part = module.register_module(item.name, mirror_of(item.value));
    add_parts(*part, item.value);
  }
}

/// Returns the reason in a message of the interpreter, which begins with the lines of the script.
std::string reason_of(const std::string& message) {
  constexpr std::string_view kMark = "RuntimeError: ";
  const size_t mark = message.rfind(kMark);
  const std::string reason = mark == std::string::npos ? message : message.substr(mark + kMark.size());
  return reason.substr(0, reason.find('\n'));
}

Script load_script(const std::string& file) {
  std::error_code error;
  TORCH_CHECK_VALUE(std::filesystem::is_regular_file(file, error), "TorchScript file ", quoted(file),
                    ": there is no such file; give the path of a file that torch.jit.save() has written");
  try {
    return torch::jit::load(file, at::kCPU);
  } catch (const std::exception& problem) {
    const std::string text = reason_of(problem.what());
    TORCH_CHECK_VALUE(false, "TorchScript file ", quoted(file),
                      " cannot be read: ", text.substr(0, text.find(". ")),
                      "; write it with torch.jit.save() or ScriptModule.save(), and not with torch.save()");
  }
}

}  // namespace

ScriptModel::ScriptModel(const std::string& file) : file_(file), script_(load_script(file)) {
  register_tensors(*this, script_);
  add_parts(*this, script_);
  TORCH_CHECK_VALUE(!parameters().empty(), "TorchScript file ", quoted(file),
                    " has no parameter to train; write it before torch.jit.freeze() makes constants of them");
}

at::Tensor ScriptModel::forward(const at::Tensor& input) {
  // Its fusions and its own derivatives would bypass autocast and the weights of a mode.
  const torch::jit::GraphOptimizerEnabledGuard an_operation_at_a_time(false);
  c10::IValue output;
  try {
    output = script_.forward({input});
  } catch (const std::exception& problem) {
    TORCH_CHECK_VALUE(false, "TorchScript file ", quoted(file_), ": forward() failed for an input of ",
                      input.sizes(), ": ", reason_of(problem.what()),
                      "; give the model data that it can read");
  }
  TORCH_CHECK_VALUE(output.isTensor(), "TorchScript file ", quoted(file_), ": forward() returned ",
                    output.tagKind(),
                    ", and training needs one tensor; script a model that returns its scores");
  return output.toTensor();
}

void ScriptModel::train(bool on) {
  TensorModule::train(on);
  script_.train(on);
}

}  // namespace mantissa
