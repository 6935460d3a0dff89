#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/ScalarType.h>

namespace mantissa::nonfinite_internal {

template <typename F>
void each_tensor(const c10::IValue& value, const F& f) {
  if (value.isTensor()) {
    f(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) f(t);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorList().vec())
      if (t) f(*t);
  }
}

template <typename F>
c10::IValue map_tensors_of(const c10::IValue& value, const F& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> out;
    for (const at::Tensor& t : value.toTensorVector()) out.push_back(f(t));
    return out;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> out;
    for (const std::optional<at::Tensor>& t : value.toOptionalTensorList().vec())
      out.push_back(t ? std::optional(f(*t)) : std::nullopt);
    return out;
  }
  return value;
}

/// How an operation uses an argument.
enum class Use { kRead, kModify, kOverwrite };
Use use_of(const c10::OperatorHandle& op, size_t index);

/// Whether what the operation returns is memory that nobody has written yet.
bool returns_raw_memory(const std::string& name);

/// Where an operation stands among the modules.
struct Place {
  std::string module;
  bool inside = false;
  size_t visits = SIZE_MAX;  ///< modules that had been entered, this one too; SIZE_MAX: not known
};

/// An operation that is running.
struct Frame final : at::ObserverContext {
  explicit Frame(c10::OperatorHandle handle) : op(std::move(handle)) {}

  const std::string& name() const { return op.schema().name(); }
  /// Argument `i` as it was before the operation.
  const c10::IValue& before(size_t i) const {
    const auto found = modified.find(i);
    return found == modified.end() ? inputs[i] : found->second;
  }

  /// The cast that this operation is a part of, or null.
  const Frame* cast() const;
  /// Whether it is a cast that autocast has put before its parent.
  bool is_by_autocast() const;
  const Frame& outermost() const { return parent ? parent->outermost() : *this; }
  /// Whether the program called it, or what it is a part of, inside an autocast region.
  bool is_under_autocast() const { return autocast || (parent && parent->is_under_autocast()); }

  c10::OperatorHandle op;
  Frame* parent = nullptr;
  std::vector<c10::IValue> inputs;
  std::unordered_map<size_t, c10::IValue> modified;   ///< copies of arguments that it changes in place
  size_t first_event = 0;                             ///< events from here on happened inside it
  bool autocast = false;                              ///< it began inside an autocast region
  std::unordered_set<c10::StorageImpl*> made_inside;  ///< by operations that it is made of, but for fills
  Place place;
};

/// What stands in for an operand of the operation; undefined: itself, cast.
using StandIn = std::function<at::Tensor(const at::Tensor& operand)>;

/// What the operation returns when its arguments are cast to `wide`, and what it then writes into; unset if
/// that cannot be run: it draws random numbers, or has no kernel for `wide`.
std::optional<std::vector<at::Tensor>> results_in(at::ScalarType wide, const Frame& frame,
                                                  const StandIn& stand_in = {});
bool all_finite(const std::vector<at::Tensor>& results);

/// The factor, if the operation is what GradScaler::scale() does to a loss of one element.
std::optional<double> loss_scale_of(const Frame& frame);

}  // namespace mantissa::nonfinite_internal
