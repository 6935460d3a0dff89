#include "mantissa/weights/named_parts.h"

#include <algorithm>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "mantissa/weights/packed_weight.h"

namespace mantissa {
namespace {

/// Whether `stored` has the weight as a plain tensor: nothing else that `state`, its packed form, consists of.
bool is_stored_plain(const std::string& name, const std::map<std::string, at::Tensor>& state,
                     const std::map<std::string, at::Tensor>& stored) {
  const auto found = stored.find(name);
  return found != stored.end() && found->second.is_floating_point() &&
         std::none_of(state.begin(), state.end(),
                      [&](const auto& item) { return item.first != name && stored.contains(item.first); });
}

/// Returns a weight like `own` with the values that are stored for it.
PackedDataPtr find_data_of(const std::string& name, const PackedData& own,
                           const std::map<std::string, at::Tensor>& stored) {
  if (!is_stored_plain(name, own.state(name), stored)) return own.with_state(stored, name);
  const at::Tensor& values = stored.at(name);
  TORCH_CHECK_VALUE(values.sizes() == own.sizes(), "'", name, "' is ", values.scalar_type(), " ",
                    values.sizes(), ", and the model's weight (", own.description(), ") has ", own.sizes(),
                    "; load into a model of the saved shapes");
  return own.with_values(values, name);
}

/// Returns what `work` returns. Its errors begin with the name of the file.
template <typename Work>
auto naming_file(const std::string& file, const Work& work) {
  if (file.empty()) return work();
  try {
    return work();
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "'", file, "' cannot be loaded: ", error.what_without_backtrace());
  }
}

}  // namespace

std::map<std::string, at::Tensor> named_parts(const std::map<std::string, at::Tensor>& weights) {
  std::map<std::string, at::Tensor> all;
  const auto add = [&](const std::string& key, const at::Tensor& tensor) {
    TORCH_CHECK_VALUE(all.emplace(key, tensor).second, "named_parts: two tensors have the name '", key,
                      "'; rename the module's parameter, since parts take their names from the format");
  };
  for (const auto& [name, weight] : weights) {
    if (!is_packed(weight)) {
      add(name, weight);
    } else {
      for (const auto& [key, tensor] : packed_data(weight)->state(name)) add(key, tensor);
    }
  }
  return all;
}

std::map<std::string, at::Tensor> plain_weights(std::map<std::string, at::Tensor> weights) {
  std::erase_if(weights, [](const auto& item) { return is_packed(item.second); });
  return weights;
}

PartsLoader::PartsLoader(torch::nn::Module& module, std::map<std::string, at::Tensor>& stored,
                         const std::string& from) {
  std::vector<std::string> used;
  const auto collect = [&](const auto& tensors) {
    for (const auto& item : tensors) {
      const at::Tensor& weight = item.value();
      if (!is_packed(weight)) continue;
      const PackedDataPtr made =
          naming_file(from, [&] { return find_data_of(item.key(), *packed_data(weight), stored); });
      for (const auto& [key, tensor] : made->state(item.key())) used.push_back(key);
      weights_.emplace_back(weight, make_packed_weight(made, weight.scalar_type()));
    }
  };
  collect(module.named_parameters());
  collect(module.named_buffers());
  for (const std::string& key : used) stored.erase(key);
}

void PartsLoader::load() {
  const at::NoGradGuard no_grad;
  for (auto& [weight, made] : weights_) weight.set_data(made);
}

}  // namespace mantissa
