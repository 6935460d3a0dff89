#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_set>
#include <utility>

#include "mantissa/trace/judge_internal.h"
#include "mantissa/trace/report_internal.h"

namespace mantissa::nonfinite_internal {
namespace {

/// Calls f(now, before) for every tensor of argument `i`: its current values, and those before the operation.
template <typename F>
void each_operand(const Frame& frame, size_t i, const F& f) {
  std::vector<at::Tensor> now, before;
  each_tensor(frame.inputs[i], [&](const at::Tensor& t) { now.push_back(t); });
  each_tensor(frame.before(i), [&](const at::Tensor& t) { before.push_back(t); });
  for (size_t k = 0; k < now.size(); ++k) f(now[k], before[k]);
}

}  // namespace

bool Judge::reads_memory_of_caller(const Frame& frame) const {
  if (!frame.parent) return false;
  std::unordered_set<c10::StorageImpl*> given;
  for (const c10::IValue& input : frame.outermost().inputs)
    each_tensor(input, [&](const at::Tensor& t) {
      if (const at::Tensor values = values_of(t); values.defined()) given.insert(Span(values).storage);
    });
  bool found = false;
  for (size_t i = 0; i < frame.inputs.size(); ++i) {
    if (use_of(frame.op, i) == Use::kOverwrite) continue;
    each_operand(frame, i, [&](const at::Tensor& now, const at::Tensor& before) {
      if (found || !values_of(now).defined() || now.unsafeGetTensorImpl()->is_wrapped_number() ||
          modules_.owner_of(now))
        return;
      const Span span(values_of(now));
      found = given.count(span.storage) == 0 && history_.causes_of(span).empty() &&
              !look_at(values_of(before)).finite();
    });
  }
  return found;
}

void Judge::read_tensor(const at::Tensor& now, const at::Tensor& before, size_t index,
                        const NonFiniteOrigin& reader, size_t visits, Operands& operands) {
  const at::Tensor values = values_of(before), values_now = values_of(now);
  if (!values.defined()) return;
  const Owned* owner = modules_.owner_of(values_now);
  operands.facts.push_back(owner ? facts_of(unexpanded(values), owner->name) : facts_of(values));
  // A bias is reported with its own shape, and so is a weight that the operation took transposed.
  const int64_t reported_size = c10::multiply_integers(operands.facts.back().sizes);
  if (owner && reported_size == c10::multiply_integers(owner->sizes))
    operands.facts.back().sizes = owner->sizes;
  operands.reduced |= at::isReducedFloatingType(values.scalar_type());
  if (operands.facts.back().non_finite == 0) return;
  const Finiteness finiteness = look_at(values);
  std::vector<size_t> causes = history_.causes_of(Span(values_now));
  // This is a number of the program: libtorch passes it to index_put_() as a tensor that no operation has
  // made.
  if (values.unsafeGetTensorImpl()->is_wrapped_number() ||
      (values.dim() == 0 && causes.empty() && !owner && !node_of(now))) {
    operands.constant_nan |= finiteness.nan;
    operands.constant_inf |= finiteness.inf;
    return;
  }
  operands.seen.nan |= finiteness.nan;
  operands.seen.inf |= finiteness.inf;
  if (causes.empty()) {
    Event source{.blame = Event::Blame::kFull, .origin = reader, .visits = visits};
    source.origin.result = operands.facts.back();
    source.origin.result.name.clear();
    source.origin.by_autocast = false;
    if (!reader.called_by.empty()) source.origin.op = std::exchange(source.origin.called_by, "");
    source.origin.tensor = "input " + std::to_string(index);
    source.origin.cause = NonFiniteCause::kInput;
    if (owner) {
      source.origin.tensor = (owner->is_parameter ? "parameter '" : "buffer '") + owner->name + "'";
      source.origin.cause = NonFiniteCause::kParameter;
    }
    const NodePointer node = node_of(now);
    if (!owner && node && is_custom(*node)) {
      const Place place = modules_.place_of(*node);
      source.origin.op = node_name(*node);
      source.origin.module = place.module;
      source.origin.inside_module = place.inside;
      source.origin.tensor = "output " + std::to_string(now.output_nr());
      source.origin.cause = NonFiniteCause::kUnknown;
      source.visits = place.visits;
    }
    if (!(owner && owner->is_parameter) && !finiteness.nan && is_mask(values)) {
      source.blame = Event::Blame::kLastResort;
      source.origin.cause = NonFiniteCause::kConstant;
    }
    causes.push_back(history_.add(std::move(source), {values_now}));
  }
  operands.causes.insert(operands.causes.end(), causes.begin(), causes.end());
}

Operands Judge::read(const Frame& frame, const NonFiniteOrigin& reader) {
  Operands operands;
  const auto number = [&](double value) {
    operands.constant_nan |= std::isnan(value);
    operands.constant_inf |= std::isinf(value);
  };
  for (size_t i = 0; i < frame.inputs.size(); ++i) {
    const c10::IValue& value = frame.inputs[i];
    if (value.isDouble()) number(value.toDouble());
    if (value.isDoubleList())
      for (const double item : value.toDoubleVector()) number(item);
    if (use_of(frame.op, i) == Use::kOverwrite) {
      each_tensor(value, [&](const at::Tensor& t) {
        operands.reduced |= t.defined() && at::isReducedFloatingType(t.scalar_type());
      });
      continue;
    }
    each_operand(frame, i, [&](const at::Tensor& now, const at::Tensor& before) {
      read_tensor(now, before, i, reader, frame.place.visits, operands);
    });
  }
  return operands;
}

void Judge::note_scale(const Frame& frame, const at::Tensor& result) {
  const std::optional<double> scale = loss_scale_of(frame);
  if (!scale) return;
  loss_scale_ = *scale;
  scaled_ = result;
}

void Judge::begin_backward(const at::Tensor& loss) {
  const bool is_scaled = scaled_.defined() && is_strided(loss) && scaled_.is_alias_of(loss);
  if (!is_scaled) loss_scale_ = 0;
  scaled_.reset();
}

NonFiniteCause Judge::cause_of(NonFiniteOrigin& origin, const Finiteness& result, bool reduced,
                               const Frame& frame) const {
  std::optional<std::vector<at::Tensor>> wide;
  origin.finite_in_float32 = false;
  if (reduced) {
    wide = results_in(at::kFloat, frame);
    origin.finite_in_float32 = wide ? std::optional(all_finite(*wide)) : std::nullopt;
  }
  if (!origin.backward && loss_scale_of(frame)) return NonFiniteCause::kLossScale;
  if (origin.finite_in_float32.value_or(false))
    return origin.backward && loss_scale_ > 0 ? NonFiniteCause::kLossScale : NonFiniteCause::kDtypeRange;
  if (const Underflows::Flushed* flushed = underflows_.explaining(frame)) {
    origin.flushed_by = flushed->by;
    origin.flushed = flushed->value;
    return NonFiniteCause::kUnderflow;
  }
  wide = results_in(at::kDouble, frame);
  if (wide && all_finite(*wide)) {
    if (!origin.backward || loss_scale_ == 0) return NonFiniteCause::kOverflow;
    double largest = 0;
    for (const at::Tensor& t : *wide)
      if (const at::Tensor values = values_of(t); values.defined())
        largest = std::max(largest, facts_of(values).max_abs);
    return largest / loss_scale_ <= std::numeric_limits<float>::max() ? NonFiniteCause::kLossScale
                                                                      : NonFiniteCause::kOverflow;
  }
  if (wide)
    return result.nan || has_known_domain(origin) ? NonFiniteCause::kDomain : NonFiniteCause::kOverflow;
  // There is no kernel for float64. Products of such operands exceed float32, and sums of these may be nan.
  constexpr double kLargest = 1e18;
  double largest = 0;
  for (const OperandFacts& input : origin.inputs) largest = std::max(largest, input.max_abs);
  if (!origin.finite_in_float32 || largest <= kLargest) return NonFiniteCause::kUnknown;
  return origin.backward && loss_scale_ > 0 && largest / loss_scale_ <= kLargest ? NonFiniteCause::kLossScale
                                                                                 : NonFiniteCause::kOverflow;
}

void Judge::judge(Event& event, const Operands& operands, const Finiteness& result,
                  const Frame* frame) const {
  NonFiniteOrigin& origin = event.origin;
  origin.inputs = operands.facts;
  event.blame = Event::Blame::kFull;
  if (operands.constant_nan) {
    origin.cause = NonFiniteCause::kConstant;
  } else if (operands.seen.nan) {
    event.blame = Event::Blame::kNone;
  } else if (operands.seen.inf || operands.constant_inf) {
    if (result.nan) {
      origin.cause = NonFiniteCause::kInfinities;
    } else {
      event.blame = operands.constant_inf ? Event::Blame::kLastResort : Event::Blame::kNone;
      origin.cause = NonFiniteCause::kConstant;
    }
  } else if (frame) {
    const bool reduced = operands.reduced || at::isReducedFloatingType(origin.result.dtype);
    origin.cause = cause_of(origin, result, reduced, *frame);
  }
}

}  // namespace mantissa::nonfinite_internal
