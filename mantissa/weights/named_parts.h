#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace mantissa {

/// Returns `weights` with each packed weight replaced by its state(), for a file: "fc.weight",
/// "fc.weight.absmax". Plain tensors are returned as they are.
///
/// Errors: c10::ValueError if a part has the name of another tensor.
std::map<std::string, at::Tensor> named_parts(const std::map<std::string, at::Tensor>& weights);

/// Returns `weights` without the packed ones.
std::map<std::string, at::Tensor> plain_weights(std::map<std::string, at::Tensor> weights);

/// Loads the packed weights of a module in two steps, so that a caller can check the rest of a file in between:
///
///     std::map<std::string, at::Tensor> weights = ...;     // as named_parts() returns them
///     PartsLoader packed(module, weights, file);           // checks the parts and takes them out of `weights`
///     ... load the plain tensors from `weights` ...
///     packed.load();
///
/// Each weight keeps its format, nominal dtype and device. A weight that is stored as plain numbers is packed, if
/// its format can do that.
/// Memory:  a copy of the parts.
/// Errors:  the constructor throws c10::ValueError naming the weight if its state is incomplete or belongs to
///          another format or shape, or if the format refuses its values. Nothing has changed then. The message
///          begins with `from`, the name of the file, if it is not empty. load() throws nothing.
/// Example: named_parts_test.cpp, NamedParts.LoadWhatWasSaved
class PartsLoader {
 public:
  PartsLoader(torch::nn::Module& module, std::map<std::string, at::Tensor>& stored,
              const std::string& from = "");
  /// Gives the module's packed weights their new values.
  void load();

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> weights_;  // each with the one whose data it gets
};

}  // namespace mantissa
