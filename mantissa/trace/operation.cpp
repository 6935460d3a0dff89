#include <algorithm>
#include <cmath>
#include <set>

#include <ATen/ops/empty.h>

#include "mantissa/trace/operation_internal.h"
#include "mantissa/trace/values_internal.h"

namespace mantissa::nonfinite_internal {
namespace {

/// True if `op` draws random numbers. Dropout with probability 0 does not.
bool is_random(const Frame& frame) {
  if (!frame.op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  const auto& arguments = frame.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == "dropout_p" && frame.inputs[i].isDouble())
      return frame.inputs[i].toDouble() != 0;
  return true;
}

bool narrower(at::ScalarType dtype, at::ScalarType wide) {
  return at::isFloatingType(dtype) && c10::elementSize(dtype) < c10::elementSize(wide);
}

}  // namespace

Use use_of(const c10::OperatorHandle& op, size_t index) {
  const c10::Argument& argument = op.schema().arguments()[index];
  if (!argument.alias_info() || !argument.alias_info()->isWrite()) return Use::kRead;
  static const std::set<std::string> overwriting = {
      "aten::copy_",      "aten::fill_",   "aten::zero_",   "aten::normal_",      "aten::uniform_",
      "aten::bernoulli_", "aten::random_", "aten::cauchy_", "aten::exponential_", "aten::log_normal_"};
  return argument.kwarg_only() || overwriting.count(op.schema().name()) != 0 ? Use::kOverwrite : Use::kModify;
}

bool returns_raw_memory(const std::string& name) {
  for (const char* start : {"aten::empty", "aten::new_empty", "aten::resize", "aten::_resize", "aten::set_"})
    if (name.rfind(start, 0) == 0) return true;
  return false;
}

const Frame* Frame::cast() const {
  const auto casts = [](const Frame* frame) {
    return frame && (frame->name() == "aten::to" || frame->name() == "aten::_to_copy");
  };
  const Frame* found = casts(this) ? this : parent;
  if (!casts(found) || (found != this && name() != "aten::copy_")) return nullptr;
  while (casts(found->parent)) found = found->parent;
  return found;
}

bool Frame::is_by_autocast() const {
  // Autocast's kernel casts the operands with autocast switched off, then calls the operation again.
  if (!parent || !parent->autocast || autocast || !inputs[0].isTensor()) return false;
  bool is_operand = false;
  for (const c10::IValue& operand : parent->inputs)
    each_tensor(operand, [&](const at::Tensor& t) { is_operand |= t.is_same(inputs[0].toTensor()); });
  return is_operand;
}

std::optional<std::vector<at::Tensor>> results_in(at::ScalarType wide, const Frame& frame,
                                                  const StandIn& stand_in) {
  if (is_random(frame)) return std::nullopt;
  const auto widen = [&](const at::Tensor& t) {
    if (!t.defined() || t.unsafeGetTensorImpl()->is_wrapped_number()) return t;
    return t.detach().to(narrower(t.scalar_type(), wide) ? wide : t.scalar_type(), /*non_blocking=*/false,
                         /*copy=*/true);
  };
  const auto widen_argument = [&](size_t i) {
    std::vector<at::Tensor> now;
    each_tensor(frame.inputs[i], [&](const at::Tensor& t) { now.push_back(t); });
    size_t k = 0;
    return map_tensors_of(frame.before(i), [&](const at::Tensor& before) {
      const at::Tensor other = stand_in ? stand_in(now[k]) : at::Tensor();
      ++k;
      return other.defined() ? other : widen(before);
    });
  };
  try {
    std::vector<c10::IValue> stack;
    const auto& arguments = frame.op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string& name = arguments[i].name();
      const bool is_dtype = name == "dtype" || name == "out_dtype" || name == "input_dtype";
      if (arguments[i].kwarg_only() && use_of(frame.op, i) == Use::kOverwrite) {
        stack.push_back(map_tensors_of(frame.inputs[i], [&](const at::Tensor& t) {
          return at::empty({0}, t.options().dtype(narrower(t.scalar_type(), wide) ? wide : t.scalar_type()));
        }));
      } else if (is_dtype && frame.inputs[i].isInt() &&
                 narrower(static_cast<at::ScalarType>(frame.inputs[i].toInt()), wide)) {
        stack.emplace_back(static_cast<int64_t>(wide));
      } else if (name == "half_to_float") {
        stack.emplace_back(false);
      } else {
        stack.push_back(widen_argument(i));
      }
    }
    std::vector<c10::IValue> written;
    for (size_t i = 0; i < arguments.size(); ++i)
      if (use_of(frame.op, i) != Use::kRead) written.push_back(stack[i]);
    frame.op.callBoxed(&stack);
    stack.insert(stack.end(), written.begin(), written.end());
    std::vector<at::Tensor> results;
    for (const c10::IValue& result : stack)
      each_tensor(result, [&](const at::Tensor& t) { results.push_back(t); });
    return results;
  } catch (const std::exception&) {
    return std::nullopt;  // no kernel for the wider dtype
  }
}

bool all_finite(const std::vector<at::Tensor>& results) {
  return std::all_of(results.begin(), results.end(), [](const at::Tensor& t) {
    const at::Tensor values = values_of(t);
    return !values.defined() || look_at(values).finite();
  });
}

std::optional<double> loss_scale_of(const Frame& frame) {
  if (frame.name() != "aten::mul" || frame.inputs.size() != 2 || !frame.inputs[0].isTensor() ||
      !frame.inputs[1].isTensor())
    return std::nullopt;
  const at::Tensor &loss = frame.inputs[0].toTensor(), &scale = frame.inputs[1].toTensor();
  if (!is_strided(loss) || loss.numel() != 1 || !is_strided(scale) || scale.dim() != 0 ||
      scale.scalar_type() != at::kFloat || scale.requires_grad() ||
      scale.unsafeGetTensorImpl()->is_wrapped_number())
    return std::nullopt;
  const auto value = scale.item<double>();
  return std::isfinite(value) && value > 0 ? std::optional(value) : std::nullopt;
}

}  // namespace mantissa::nonfinite_internal
