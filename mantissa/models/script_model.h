#pragma once

#include <string>

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>

#include "mantissa/models/tensor_module.h"

namespace mantissa {

/// The model of a TorchScript file, which torch.jit.save() has written in Python.
///
/// Its modules appear as modules of libtorch that have the same tensors, under the names of Python's state_dict().
/// Linear layers appear as torch::nn::Linear and batch norms as torch::nn::BatchNorm1d to 3d, so that modes, adapters and
/// `ignore_modules` find them. Tied weights stay tied. forward() runs the script an operation at a time, as Python's eager
/// mode does, so that autocast and a mode's weights apply to each operation.
///
/// Numerics: the bits of the script's own forward() without the fusions of its profiling executor.
/// Errors:   the constructor throws c10::ValueError that names the file, for a file that is no TorchScript or cannot be read,
///           and for a model without a parameter, such as a frozen one. forward() throws c10::ValueError if the script
///           throws, and if it returns anything else than one tensor.
/// Threads:  forward() may not run in several threads at once.
/// Example:  script_model_test.cpp, ScriptModels.HasTheTensorsOfTheScript
class ScriptModel final : public TensorModule {
 public:
  explicit ScriptModel(const std::string& file);
  at::Tensor forward(const at::Tensor& input) override;
  /// Switches the script, too. A traced model keeps the behaviour that it was traced with.
  void train(bool on = true) override;

 private:
  const std::string file_;
  torch::jit::Module script_;
};

}  // namespace mantissa
