#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "mantissa/models/causal_model.h"

namespace mantissa {

// The public files of some models have other names for their weights, or have them transposed, as
// CausalModel::own_name() and is_transposed_in_files() say. For other models, these functions change nothing. Codes of
// quantized weights keep their form.

/// Returns a model's tensors, which have its own names, as its public files have them: transposed ones become views.
std::map<std::string, at::Tensor> as_in_files(const CausalModel& model,
                                              std::map<std::string, at::Tensor> weights);

/// Returns the tensors of a file as the model has them. `from` is the file's name in errors.
/// Errors: c10::ValueError if two of them are the same weight.
std::map<std::string, at::Tensor> as_in_model(const CausalModel& model,
                                              const std::map<std::string, at::Tensor>& stored,
                                              const std::string& from);

/// Copies the weights of a public file into a model, in place, as load_weights() does.
///
/// Numerics, memory: those of load_weights().
/// Errors: those of load_weights() and as_in_model(), before anything is changed.
void load_weight_file(CausalModel& model, const std::filesystem::path& path);

}  // namespace mantissa
