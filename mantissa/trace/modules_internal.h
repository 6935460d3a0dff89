#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include "mantissa/core/torch_compat_internal.h"
#include "mantissa/core/weak_map.h"
#include "mantissa/trace/operation_internal.h"
#include "mantissa/trace/trace_nonfinite.h"
#include "mantissa/trace/values_internal.h"

namespace torch::nn {
class Module;
}

namespace mantissa::nonfinite_internal {

/// A parameter or buffer, or a copy of one.
struct Owned {
  Span span;
  std::string module, name;
  bool is_parameter;
  at::Tensor original = {};  ///< undefined for a copy
  std::vector<int64_t> sizes = {};
};

/// Returns the node of `t`'s derivative, or null.
NodePointer node_of(const at::Tensor& t);

/// True if `node` belongs to a custom function, torch::autograd::Function<>.
bool is_custom(const torch::autograd::Node& node);
/// Returns "NanGradient" for torch::autograd::CppNode<(anonymous namespace)::NanGradient>.
std::string node_name(const torch::autograd::Node& node);

/// Finds the module that an operation belongs to. libtorch's modules have no hooks, so an operation is
/// identified by the parameter or buffer that it reads, and its derivative by the node that holds it.
class Modules {
 public:
  explicit Modules(const torch::nn::Module& root);

  /// Returns null if `tensor` is neither a parameter or buffer nor a copy or a part of one.
  const Owned* owner_of(const at::Tensor& tensor) const;
  /// Makes casts and copies of a parameter, such as autocast's, count for its module.
  void own_copies(const Frame& frame, const std::vector<c10::IValue>& outputs);

  /// Records that the node of `result` is the derivative of `name`; an empty name stands for the node's own
  /// name.
  void remember_forward_op(const at::Tensor& result, const std::string& name, const Place& place);
  /// Returns the place of the operation whose derivative is `node`.
  Place place_of(const torch::autograd::Node& node) const;
  /// Returns the place of an operation that begins. In the forward pass it may enter a module.
  Place enter(const Frame& frame, bool in_backward);
  /// Returns the place behind the module that was entered last.
  Place here() const;

  /// Fills in pass, module and forward operation. `node` is the node whose backward is running, or null.
  void locate(NonFiniteOrigin& origin, const Place& place, const torch::autograd::Node* node,
              bool in_backward) const;
  /// Returns the module that was entered after `visits` others; empty if there is none.
  std::string entered_after(size_t visits) const;
  size_t visits() const { return visits_.size(); }

 private:
  struct ForwardOp {
    std::string name;
    Place place;
  };
  /// Identifies a node for the life of the process, because its address may be reused.
  using NodeKey = std::pair<uint64_t, uint64_t>;

  static NodeKey key_of(const torch::autograd::Node& node);
  void own(const at::Tensor& tensor, Owned owned);

  WeakMap<c10::Storage, std::vector<Owned>> owned_;
  std::vector<std::string> visits_;           ///< modules in the order of the forward
  std::map<NodeKey, ForwardOp> forward_ops_;  ///< by the node that holds their derivative
};

}  // namespace mantissa::nonfinite_internal
