#pragma once

#include <string>
#include <vector>

#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

namespace mantissa {

/// `groups` with each parameter once, for the constructors of our optimizers. libtorch's Module::parameters()
/// names a tied weight once for each module that holds it, and it would be stepped as often; Python's names it
/// once. Of repetitions in a group the first stays.
///
/// Errors: c10::ValueError where two groups share a parameter: whose options should it have? `optimizer` is
///         its name in the message.
std::vector<torch::optim::OptimizerParamGroup> unique_parameters(
    const char* optimizer, const std::vector<torch::optim::OptimizerParamGroup>& groups);

template <typename T>
void read_if_present(torch::serialize::InputArchive& archive, const std::string& key, T& value) {
  c10::IValue stored;
  if (archive.try_read(key, stored)) value = stored.to<T>();
}

inline void write_if_defined(torch::serialize::OutputArchive& archive, const std::string& key,
                             const at::Tensor& tensor) {
  if (tensor.defined()) archive.write(key, c10::IValue(tensor));
}

}  // namespace mantissa
