#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

#include "mantissa/weights/marked_weight.h"

/// How a mark works. A marked tensor has one more dispatch key than before, and nothing else is different.
/// The key ranks above autograd's and autocast's, so the products of marked_operators.cpp are called before
/// either. For all other operations the key has a fall-through, which the dispatcher skips without a call.
/// libtorch hands a tensor's keys on to its views and, in set_data() and detach(), to the tensor that takes
/// its place. The rule belongs to the bytes of the weight in its storage, which the views share.
namespace mantissa::marked {

/// libtorch provides this key for tensors that wrap others in tests, and does not use it.
constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// What all copies of this library in a process (a program's and a plug-in's) share.
struct Registration {
  void (*insert)(const at::Tensor& weight, WeightRulePtr rule);
  /// Returns null if the bytes of `tensor` belong to no marked weight.
  WeightRulePtr (*find)(const at::Tensor& tensor);
};

/// Returns the registration of the copy whose kernels are registered. Registers this copy's kernels if no
/// copy has registered any.
///
/// Threads: any may call, even while other threads are in libtorch's kernels: only entries of kKey change,
///          which no other tensor uses.
/// Errors:  c10::Error if libtorch refuses a kernel, if the registered kernels belong to another release of
///          Mantissa, or if the shared object that holds this code cannot be kept loaded.
const Registration& in_charge();

/// The functions of Registration, of this copy.
void insert_rule(const at::Tensor& weight, WeightRulePtr rule);
WeightRulePtr find_rule(const at::Tensor& tensor);

/// Whether `tensor`, which is defined, has the key.
bool has_key(const at::Tensor& tensor);

/// Gives the key to a tensor, or takes it away.
void set_key(const at::Tensor& tensor, bool on);

/// Returns a view of all of `tensor` that has no mark; any other tensor is returned as it is. Autograd's nodes
/// must save this view and not a marked tensor, because the products of the backward pass would apply the
/// rule.
at::Tensor without_mark(const at::Tensor& tensor);

}  // namespace mantissa::marked
