#include <set>
#include <string_view>

#include <torch/nn/module.h>

#include "mantissa/trace/modules_internal.h"

namespace mantissa::nonfinite_internal {

using torch::autograd::Node;

namespace {
constexpr std::string_view kCustom = "torch::autograd::CppNode<";
}

bool is_custom(const Node& node) { return node.name().rfind(kCustom, 0) == 0; }

std::string node_name(const Node& node) {
  std::string name = node.name();
  if (!is_custom(node)) return name;
  name = name.substr(kCustom.size(), name.size() - kCustom.size() - 1);
  const size_t scope = name.rfind("::");
  return scope == std::string::npos ? name : name.substr(scope + 2);
}

NodePointer node_of(const at::Tensor& t) {
  if (!t.defined() || !t.requires_grad()) return nullptr;
  try {
    return t.grad_fn();
  } catch (const c10::Error&) {
    return nullptr;  // a row of a parameter that was written without gradients
  }
}

Modules::Modules(const torch::nn::Module& root) {
  const auto own_all = [this](const auto& named, bool is_parameter) {
    for (const auto& item : named) {
      const at::Tensor& tensor = item.value();
      if (!is_strided(tensor)) continue;
      const size_t dot = item.key().rfind('.');
      const std::string module = dot == std::string::npos ? "" : item.key().substr(0, dot);
      own(tensor, {Span(tensor), module, item.key(), is_parameter, tensor, tensor.sizes().vec()});
    }
  };
  own_all(root.named_parameters(), /*is_parameter=*/true);
  own_all(root.named_buffers(), /*is_parameter=*/false);
}

void Modules::own(const at::Tensor& tensor, Owned owned) {
  std::vector<Owned>& all = *owned_.try_emplace(tensor.storage()).first;
  for (Owned& other : all) {
    if (other.span.begin != owned.span.begin || other.span.end != owned.span.end) continue;
    other.module += " or " + owned.module;  // a tied weight: it cannot be known which of the two reads it
    other.name += " or " + owned.name;
    return;
  }
  all.push_back(std::move(owned));
}

const Owned* Modules::owner_of(const at::Tensor& tensor) const {
  if (!is_strided(tensor)) return nullptr;
  const Span span(tensor);
  const std::vector<Owned>* found = owned_.find(span.storage);
  if (!found) return nullptr;
  for (const Owned& owned : *found)
    if (owned.span.overlaps(span)) return &owned;
  return nullptr;
}

void Modules::own_copies(const Frame& frame, const std::vector<c10::IValue>& outputs) {
  static const std::set<std::string> copying = {"aten::_to_copy", "aten::clone", "aten::contiguous",
                                                "aten::to"};
  if (copying.count(frame.name()) == 0 || !frame.inputs[0].isTensor() || outputs.empty()) return;
  const Owned* owner = owner_of(frame.inputs[0].toTensor());
  if (!owner || owner_of(outputs[0].toTensor())) return;
  const at::Tensor& copy = outputs[0].toTensor();
  if (!is_strided(copy)) return;
  Owned owned = *owner;
  owned.span = Span(copy);
  owned.original = at::Tensor();
  own(copy, std::move(owned));
}

Modules::NodeKey Modules::key_of(const Node& node) { return {node.thread_id(), node.sequence_nr()}; }

void Modules::remember_forward_op(const at::Tensor& result, const std::string& name, const Place& place) {
  // The innermost operation ends first, and the node is that operation's derivative.
  if (const NodePointer node = node_of(result))
    forward_ops_.try_emplace(key_of(*node), ForwardOp{name.empty() ? node_name(*node) : name, place});
}

Place Modules::place_of(const Node& node) const {
  const auto forward = forward_ops_.find(key_of(node));
  return forward == forward_ops_.end() ? Place{} : forward->second.place;
}

Place Modules::here() const {
  return {.module = visits_.empty() ? "" : visits_.back(), .inside = false, .visits = visits_.size()};
}

Place Modules::enter(const Frame& frame, bool in_backward) {
  const NodePointer node = torch::autograd::get_current_node();
  const auto forward = node ? forward_ops_.find(key_of(*node)) : forward_ops_.end();
  const Owned* owner = nullptr;
  for (const c10::IValue& input : frame.inputs)
    each_tensor(input, [&](const at::Tensor& t) { owner = owner ? owner : owner_of(t); });
  // The tensors of the root itself, such as a mask, say less than the previous module.
  if (owner && (!owner->module.empty() || visits_.empty())) {
    if (!in_backward && !node && !owner->module.empty() &&
        (visits_.empty() || visits_.back() != owner->module))
      visits_.push_back(owner->module);
    const bool is_known = node && forward != forward_ops_.end();
    return {.module = owner->module,
            .inside = true,
            .visits = is_known ? forward->second.place.visits : visits_.size()};
  }
  if (forward != forward_ops_.end()) return forward->second.place;
  if (frame.parent && frame.parent->place.inside) return frame.parent->place;
  if (node || in_backward) return {};
  return here();
}

void Modules::locate(NonFiniteOrigin& origin, const Place& place, const Node* node, bool in_backward) const {
  origin.backward = node || in_backward;
  origin.module = place.module;
  origin.inside_module = place.inside;
  if (!node) return;
  const auto forward = forward_ops_.find(key_of(*node));
  if (forward != forward_ops_.end()) origin.forward_op = forward->second.name;
}

std::string Modules::entered_after(size_t visits) const {
  return visits < visits_.size() ? visits_[visits] : "";
}

}  // namespace mantissa::nonfinite_internal
