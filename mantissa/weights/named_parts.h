#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace mantissa {

/// Returns `weights` with each packed weight replaced by its parts, for a file: the parts "" and "absmax" of
/// "fc.weight" have the names "fc.weight" and "fc.weight.absmax". Plain tensors are returned as they are.
///
/// Errors: c10::ValueError if a part has the name of another tensor.
std::map<std::string, at::Tensor> named_parts(const std::map<std::string, at::Tensor>& weights);

/// Gives the packed weights of `module` the values of the parts in `stored`, as named_parts() returns them,
/// and removes these parts from `stored`. What is left belongs to the module's plain tensors. Each weight keeps
/// its format, nominal dtype and device.
///
/// Memory: the new parts, and the old ones until the end.
/// Errors: c10::ValueError naming the weight if a part is missing or has another dtype or shape, or if the
///         format refuses its values. Nothing has changed then.
/// Example: named_parts_test.cpp, NamedParts.LoadWhatWasSaved
void load_parts(torch::nn::Module& module, std::map<std::string, at::Tensor>& stored);

}  // namespace mantissa
