#include <cmath>
#include <string>
#include <unordered_set>
#include <utility>

#include "mantissa/precision/nonfinite_judge_internal.h"
#include "mantissa/precision/nonfinite_report_internal.h"

namespace mantissa::nonfinite_internal {
namespace {

/// Calls f(now, before) for every tensor of argument `i`: as it is, and as it was before the operation.
template <typename F>
void each_operand(const Frame& frame, size_t i, const F& f) {
  std::vector<at::Tensor> now, before;
  each_tensor(frame.inputs[i], [&](const at::Tensor& t) { now.push_back(t); });
  each_tensor(frame.before(i), [&](const at::Tensor& t) { before.push_back(t); });
  for (size_t k = 0; k < now.size(); ++k) f(now[k], before[k]);
}

}  // namespace

bool Judge::reads_callers_own(const Frame& frame) const {
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
  // A bias is told of as itself, a weight that the operation took transposed as well.
  const int64_t told = c10::multiply_integers(operands.facts.back().sizes);
  if (owner && told == c10::multiply_integers(owner->sizes)) operands.facts.back().sizes = owner->sizes;
  operands.reduced |= at::isReducedFloatingType(values.scalar_type());
  if (operands.facts.back().non_finite == 0) return;
  const Finiteness finiteness = look_at(values);
  std::vector<size_t> causes = history_.causes_of(Span(values_now));
  // A number of the program's: libtorch hands one to index_put_() in a tensor that no operation has made.
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
    const std::shared_ptr<torch::autograd::Node> node = node_of(now);
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
    origin.finite_in_float32 = reduced ? finite_in(at::kFloat, *frame) : std::optional(false);
    if (origin.finite_in_float32.value_or(false)) {
      origin.cause = origin.backward ? NonFiniteCause::kLossScale : NonFiniteCause::kDtypeRange;
    } else if (const std::optional<bool> finite = finite_in(at::kDouble, *frame)) {
      const bool too_large = *finite || (!result.nan && !has_known_domain(origin));
      origin.cause = too_large ? NonFiniteCause::kOverflow : NonFiniteCause::kDomain;
    }
  }
}

}  // namespace mantissa::nonfinite_internal
