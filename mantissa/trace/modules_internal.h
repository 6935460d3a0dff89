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
  at::Tensor original = {};  ///< undefined of a copy
  std::vector<int64_t> sizes = {};
};

/// The node of `t`'s derivative, or null.
NodePointer node_of(const at::Tensor& t);

/// Whether it is a custom function's, torch::autograd::Function<>.
bool is_custom(const torch::autograd::Node& node);
/// "NanGradient" for torch::autograd::CppNode<(anonymous namespace)::NanGradient>.
std::string node_name(const torch::autograd::Node& node);

/// Which module an operation belongs to. libtorch's modules have no hooks: an operation is known by the
/// parameter or buffer that it reads, and its derivative by the node that holds it.
class Modules {
 public:
  explicit Modules(const torch::nn::Module& root);

  /// Null if `tensor` is no parameter or buffer, nor a copy or a part of one.
  const Owned* owner_of(const at::Tensor& tensor) const;
  /// Casts and copies of a parameter, such as autocast's, speak for its module as well.
  void own_copies(const Frame& frame, const std::vector<c10::IValue>& outputs);

  /// The node of `result` is the derivative of `name`; empty: the node's own name.
  void remember_forward_op(const at::Tensor& result, const std::string& name, const Place& place);
  /// The place of the operation whose derivative `node` is.
  Place place_of(const torch::autograd::Node& node) const;
  /// The place of an operation that begins; one of the forward may enter a module.
  Place enter(const Frame& frame, bool in_backward);
  /// Behind the module that was entered last.
  Place here() const;

  /// Fills in pass, module and forward operation. `node`: whose backward is running, or null.
  void locate(NonFiniteOrigin& origin, const Place& place, const torch::autograd::Node* node,
              bool in_backward) const;
  /// The module that was entered after `visits` others; empty: none.
  std::string entered_after(size_t visits) const;
  size_t visits() const { return visits_.size(); }

 private:
  struct ForwardOp {
    std::string name;
    Place place;
  };
  /// A node for as long as the process lives; its address may be used again.
  using NodeKey = std::pair<uint64_t, uint64_t>;

  static NodeKey key_of(const torch::autograd::Node& node);
  void own(const at::Tensor& tensor, Owned owned);

  WeakMap<c10::Storage, std::vector<Owned>> owned_;
  std::vector<std::string> visits_;           ///< modules in the order of the forward
  std::map<NodeKey, ForwardOp> forward_ops_;  ///< by the node that holds their derivative
};

}  // namespace mantissa::nonfinite_internal
