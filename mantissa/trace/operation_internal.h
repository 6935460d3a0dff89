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

/// True if the operation returns memory that has not been written yet.
bool returns_raw_memory(const std::string& name);

/// The position of an operation among the modules.
struct Place {
  std::string module;
  bool inside = false;
  size_t visits = SIZE_MAX;  ///< number of modules entered so far, including this one; SIZE_MAX if unknown
};

/// An operation that is running.
struct Frame final : at::ObserverContext {
  explicit Frame(c10::OperatorHandle handle) : op(std::move(handle)) {}

  const std::string& name() const { return op.schema().name(); }
  /// Returns argument `i` as it was before the operation.
  const c10::IValue& before(size_t i) const {
    const auto found = modified.find(i);
    return found == modified.end() ? inputs[i] : found->second;
  }

  /// Returns the cast that this operation is a part of, or null.
  const Frame* cast() const;
  /// True if this is a cast that autocast inserted before its parent.
  bool is_by_autocast() const;
  const Frame& outermost() const { return parent ? parent->outermost() : *this; }
  /// True if the program called the operation, or the one it is a part of, inside an autocast region.
  bool is_under_autocast() const { return autocast || (parent && parent->is_under_autocast()); }

  c10::OperatorHandle op;
  Frame* parent = nullptr;
  std::vector<c10::IValue> inputs;
  std::unordered_map<size_t, c10::IValue> modified;   ///< copies of the arguments that it changes in place
  size_t first_event = 0;                             ///< events from this number on happened inside it
  bool autocast = false;                              ///< it began inside an autocast region
  std::unordered_set<c10::StorageImpl*> made_inside;  ///< by the operations it consists of, except fills
  Place place;
};

/// Replaces an operand of the operation. If it returns an undefined tensor, the operand itself is used, cast.
using StandIn = std::function<at::Tensor(const at::Tensor& operand)>;

/// Runs the operation with its arguments cast to `wide`; returns its results and the tensors that it writes
/// into. Returns nothing if it cannot be run again, because it draws random numbers or has no kernel for
/// `wide`.
std::optional<std::vector<at::Tensor>> results_in(at::ScalarType wide, const Frame& frame,
                                                  const StandIn& stand_in = {});
bool all_finite(const std::vector<at::Tensor>& results);

/// Returns the loss scale if the operation is what GradScaler::scale() does to a loss of one element.
std::optional<double> loss_scale_of(const Frame& frame);

}  // namespace mantissa::nonfinite_internal
