#include <algorithm>
#include <set>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "mantissa/core/suggest.h"
#include "mantissa/lora/layers_internal.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa::lora {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;
using Visit = std::function<void(const std::string&, const ModulePtr&)>;

void visit_below(const torch::nn::Module& module, const std::string& prefix,
                 std::set<const torch::nn::Module*>& seen, const Visit& visit) {
  for (const auto& child : module.named_children()) {
    if (!child.value() || dynamic_cast<const Factors*>(child.value().get())) continue;
    if (!seen.insert(child.value().get()).second) continue;
    const std::string name = prefix.empty() ? child.key() : prefix + "." + child.key();
    visit(name, child.value());
    visit_below(*child.value(), name, seen, visit);
  }
}

/// The modules of a model, and which weights several of them share.
class Survey {
 public:
  explicit Survey(const torch::nn::Module& root) {
    count(root);
    visit_modules(root, [&](const std::string& name, const ModulePtr& module) {
      modules_.emplace_back(name, module);
      count(*module);
    });
  }

  const std::vector<std::pair<std::string, ModulePtr>>& modules() const { return modules_; }

  /// Whether another module has the layer's weight, too. A typed member may be another module's parameter
  /// although the layer has one of its own under the name "weight".
  bool is_shared(const torch::nn::LinearImpl& layer) const {
    const auto own = layer.named_parameters(/*recurse=*/false);
    const at::Tensor* const registered = own.find("weight");
    return !registered || !registered->is_same(layer.weight) ||
           owners_.at(layer.weight.unsafeGetTensorImpl()) > 1;
  }

  /// Throws if `module` cannot have an adapter.
  std::shared_ptr<torch::nn::LinearImpl> checked(const std::string& name, const ModulePtr& module) const {
    auto layer = std::dynamic_pointer_cast<torch::nn::LinearImpl>(module);
    TORCH_CHECK_VALUE(layer, "LoRA: the module '", name, "' is a ", module->name(),
                      ", and adapters are for torch::nn::Linear; leave it out of target_modules");
    const at::Tensor& weight = layer->weight;
    TORCH_CHECK_VALUE(!is_shared(*layer), "LoRA: the weight of '", name,
                      "' is shared with another module, which would get the adapter too; leave the layer out "
                      "with exclude_modules");
    TORCH_CHECK_VALUE(is_packed_compute_dtype(weight.scalar_type()) && weight.scalar_type() != at::kDouble,
                      "LoRA: the weight of '", name, "' is ", weight.scalar_type(),
                      ", and a base is Float, Half, BFloat16 or packed; convert the model first");
    TORCH_CHECK_VALUE(!weight.is_meta(), "LoRA: the weight of '", name,
                      "' is on the meta device; give the model values first");
    return layer;
  }

  std::vector<std::string> linear_names() const {
    std::vector<std::string> names;
    for (const auto& [name, module] : modules_)
      if (module->as<torch::nn::LinearImpl>()) names.push_back(name);
    return names;
  }

 private:
  void count(const torch::nn::Module& module) {
    for (const at::Tensor& parameter : module.parameters(/*recurse=*/false))
      if (parameter.defined()) ++owners_[parameter.unsafeGetTensorImpl()];
  }

  std::vector<std::pair<std::string, ModulePtr>> modules_;
  std::map<const c10::TensorImpl*, int> owners_;
};

/// Returns the last parts of names, which is what target_modules usually has.
std::vector<std::string> last_parts(const std::vector<std::string>& names) {
  std::set<std::string> parts;
  for (const std::string& name : names) parts.insert(name.substr(name.rfind('.') + 1));
  return {parts.begin(), parts.end()};
}

void check_every_name(const Survey& survey, const ModuleNames& names, const char* member) {
  for (const std::string& end : names.ends()) {
    const bool fits = std::any_of(survey.modules().begin(), survey.modules().end(),
                                  [&](const auto& module) { return ends_with_name(module.first, end); });
    if (fits) continue;
    const std::vector<std::string> known = last_parts(survey.linear_names());
    const std::string meant = did_you_mean(end, known);
    TORCH_CHECK_VALUE(false, "LoRA: ", member, " has '", end, "', and no module's name ends so",
                      meant.empty() ? "; linear layers end in " + join_names(known) : meant);
  }
}

}  // namespace

void visit_modules(const torch::nn::Module& root, const Visit& visit) {
  std::set<const torch::nn::Module*> seen{&root};
  visit_below(root, "", seen, visit);
}

std::vector<FoundLayer> find_targets(const torch::nn::Module& root, const LoraConfig& config,
                                     bool every_name) {
  const Survey survey(root);
  const ModuleNames& targets = config.target_modules;
  if (every_name) {
    check_every_name(survey, targets, "target_modules");
    check_every_name(survey, config.exclude_modules, "exclude_modules");
  }
  std::vector<FoundLayer> found;
  for (const auto& [name, module] : survey.modules()) {
    if (!targets.matches(name) || config.exclude_modules.matches(name)) continue;
    if (targets.is_all_linear()) {
      const auto* const layer = module->as<torch::nn::LinearImpl>();
      if (!layer || survey.is_shared(*layer)) continue;
    }
    found.push_back({name, survey.checked(name, module)});
  }
  TORCH_CHECK_VALUE(!found.empty(), "LoRA: target_modules (", targets.text(), ") matches no linear layer of ",
                    root.name(), config.exclude_modules.text().empty() ? "" : " that exclude_modules leaves",
                    survey.linear_names().empty()
                        ? "; give a model with a torch::nn::Linear among its submodules"
                        : "; choose from " + join_names(last_parts(survey.linear_names())));
  return found;
}

std::vector<FoundLayer> find_layers(const torch::nn::Module& root, const std::vector<std::string>& names,
                                    const std::string& from) {
  const Survey survey(root);
  std::map<std::string, ModulePtr> by_name(survey.modules().begin(), survey.modules().end());
  std::vector<FoundLayer> found;
  for (const std::string& name : names) {
    const auto module = by_name.find(name);
    TORCH_CHECK_VALUE(module != by_name.end(), from, " has weights for '", name,
                      "', a layer that the model does not have", did_you_mean(name, survey.linear_names()),
                      "; give the model that the adapter was trained on");
    found.push_back({name, survey.checked(name, module->second)});
  }
  return found;
}

}  // namespace mantissa::lora
