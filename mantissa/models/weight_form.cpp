#include "mantissa/models/weight_form.h"

#include "mantissa/io/safetensors.h"
#include "mantissa/io/weights.h"

namespace mantissa {
namespace {

bool is_matrix(const at::Tensor& tensor) { return tensor.is_floating_point() && tensor.dim() == 2; }

}  // namespace

std::map<std::string, at::Tensor> as_in_files(const PublicModel& model,
                                              const std::map<std::string, at::Tensor>& weights) {
  std::map<std::string, at::Tensor> stored;
  for (const auto& [name, tensor] : weights)
    stored[model.name_in_files(name)] =
        model.is_transposed_in_files(name) && is_matrix(tensor) ? tensor.detach().t() : tensor;
  return stored;
}

std::map<std::string, at::Tensor> as_in_model(const PublicModel& model,
                                              const std::map<std::string, at::Tensor>& stored,
                                              const std::string& from) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& [stored_name, tensor] : stored) {
    const std::string name = model.own_name(stored_name);
    if (name.empty()) continue;
    const bool is_new =
        weights.emplace(name, model.is_transposed_in_files(name) && is_matrix(tensor) ? tensor.t() : tensor)
            .second;
    TORCH_CHECK_VALUE(is_new, "'", from, "' has the weight '", name,
                      "' twice, with and without a prefix; remove one of them");
  }
  return weights;
}

void load_weight_file(PublicModel& model, const std::filesystem::path& path) {
  load_weights(as_in_files(model, named_weights(model)), path, [&](const std::string& name) {
    const std::string own = model.own_name(name);
    return own.empty() ? own : model.name_in_files(own);
  });
}

void save_weight_file(const PublicModel& model, const std::filesystem::path& path) {
  save_safetensors(path, as_in_files(model, named_weights(model)));
}

}  // namespace mantissa
