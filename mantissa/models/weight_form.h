#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "mantissa/models/public_model.h"

namespace mantissa {

// The public files of some models have other names for their weights, or have them transposed, as
// PublicModel says. For other models, these functions change nothing. Codes of
// quantized weights keep their form.

/// Returns a model's tensors, which have its own names, as its public files have them, under the names there: transposed ones become views.
std::map<std::string, at::Tensor> as_in_files(const PublicModel& model,
                                              const std::map<std::string, at::Tensor>& weights);

/// Returns the tensors of a file as the model has them. `from` is the file's name in errors.
/// Errors: c10::ValueError if two of them are the same weight.
std::map<std::string, at::Tensor> as_in_model(const PublicModel& model,
                                              const std::map<std::string, at::Tensor>& stored,
                                              const std::string& from);

/// Copies the weights of a public file into a model, in place, as load_weights() does.
///
/// Numerics, memory: those of load_weights().
/// Errors: those of load_weights(), with the names that the model's files have, before anything is changed.
void load_weight_file(PublicModel& model, const std::filesystem::path& path);

/// Writes a model's weights as save_weights() does, in the form of its public files.
/// Errors: those of save_safetensors().
void save_weight_file(const PublicModel& model, const std::filesystem::path& path);

}  // namespace mantissa
