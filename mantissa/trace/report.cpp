#include <algorithm>
#include <array>
#include <limits>
#include <sstream>

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include "mantissa/core/formats.h"
#include "mantissa/trace/report_internal.h"

namespace mantissa {
namespace {

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// A part of an operation's name, and the values that its domain excludes. The first row that matches is
/// used.
struct DomainRule {
  std::string_view part;
  const char* cure;
};

constexpr std::array kForwardDomains{
    DomainRule{"rsqrt", "1/sqrt of 0 or of a negative value: add an epsilon under the root"},
    DomainRule{"sqrt", "the root of a negative value: clamp it at 0, with an epsilon added"},
    DomainRule{
        "log",
        "log of 0 or of a negative value: add an epsilon or clamp before the log, or take log_softmax or "
        "logsigmoid, which do not leave their domain"},
    DomainRule{"div", "division by 0: add an epsilon to the divisor"},
    DomainRule{"reciprocal", "1/0: add an epsilon to the divisor"},
    DomainRule{
        "pow",
        "a negative exponent of 0, or a fractional one of a negative value: add an epsilon to the base, or "
        "clamp it"},
    DomainRule{
        "norm",
        "its deviation is 0 (a constant row, or an epsilon too small for the dtype): raise its epsilon"},
    DomainRule{"acos", "acos outside [-1, 1]: clamp its input"},
    DomainRule{"asin", "asin outside [-1, 1]: clamp its input"},
    DomainRule{"mean", "the mean of no values: leave empty batches and rows out"},
    DomainRule{"nll_loss", "the mean of no values: every target is the ignored one; leave such batches out"},
    DomainRule{"std", "the deviation of one value: take the biased one, or more values"},
    DomainRule{"var", "the variance of one value: take the biased one, or more values"}};

constexpr std::array kBackwardDomains{
    DomainRule{"sqrt", "its derivative at 0 is infinite: add an epsilon under the root"},
    DomainRule{"norm", "its derivative at 0 is infinite: add an epsilon under the root"},
    DomainRule{"std", "its derivative at 0 is infinite: take sqrt(var + epsilon)"},
    DomainRule{"pow", "the derivative of a fractional power at 0 is infinite: add an epsilon to the base"},
    DomainRule{
        "log",
        "its derivative at 0 is infinite, also where a mask drops the value later: clamp before the log"},
    DomainRule{"div",
               "division by 0: add an epsilon to the divisor, also where a mask drops the quotient later"},
    DomainRule{"acos", "its derivative at -1 and 1 is infinite: clamp its input a little further in"},
    DomainRule{"asin", "its derivative at -1 and 1 is infinite: clamp its input a little further in"}};

template <size_t N>
const char* find_rule(const std::array<DomainRule, N>& rules, const std::string& name) {
  for (const DomainRule& rule : rules)
    if (contains(name, rule.part)) return rule.cure;
  return nullptr;
}

const char* domain_cure(const NonFiniteOrigin& origin) {
  const char* known = nullptr;
  if (origin.backward && !origin.forward_op.empty()) known = find_rule(kBackwardDomains, origin.forward_op);
  return known ? known : find_rule(kForwardDomains, origin.op);
}

std::string describe(const OperandFacts& facts) {
  std::ostringstream out;
  out.precision(3);
  out << c10::toString(facts.dtype) << " " << c10::IntArrayRef(facts.sizes);
  if (!facts.name.empty()) out << " '" << facts.name << "'";
  const bool none_finite = facts.non_finite > 0 && facts.non_finite == c10::multiply_integers(facts.sizes);
  if (!none_finite) out << " |x| " << facts.min_abs << ".." << facts.max_abs;
  if (none_finite) {
    out << " not finite";
  } else if (facts.non_finite > 0) {
    out << " and " << facts.non_finite << " not finite";
  }
  return out.str();
}

double largest(at::ScalarType dtype) { return info(format_of(dtype).value_or(Format::kFloat32)).largest; }

/// Returns the call that keeps the operation's module in float32 under autocast.
std::string keep_call(const NonFiniteOrigin& origin) {
  return "keep_in_fp32(model, \"" + origin.module + "\")";
}

/// Returns "keep this module in float32", as far as that is possible where the operation ran.
std::string in_float32(const NonFiniteOrigin& origin) {
  if (!origin.inside_module || origin.module.empty() || contains(origin.module, " or "))
    return "run this part in float32, on inputs cast with .to(at::kFloat)";
  const std::string keep = keep_call(origin);
  if (origin.under_autocast) return "keep this module in float32, " + keep;
  return "its weights are 16-bit themselves: scale its values down, train in 16-mixed (its weights are "
         "float32, so that " +
         keep + " works)";
}

std::string range_cure(const NonFiniteOrigin& origin) {
  if (origin.by_autocast && !origin.module.empty() && !origin.inputs.empty() &&
      !origin.inputs[0].name.empty())
    return "a weight of this size is unusable: check what made it grow (learning rate, the checkpoint). "
           "To train with it anyway, use " +
           keep_call(origin) + " or bf16, whose range is float32's";
  if (origin.backward)
    return "the loss is not scaled by a scaler, so this gradient is too large by itself, or by a factor "
           "of your own: clamp what makes it, run this part in float32, or train in bf16, whose range is "
           "float32's";
  return in_float32(origin) + ", or train in bf16, whose range is float32's";
}

std::string loss_scale_cure(const NonFiniteOrigin& origin) {
  if (!origin.backward)
    return "the loss itself is finite: lower the loss scale (a dynamic one backs off by itself), and "
           "give the scaler a loss in float32";
  return "lower the loss scale (a dynamic one backs off by itself; a step skipped now and then is "
         "normal). If it returns at every scale, run this part in float32 or train in bf16";
}

std::string input_cure(const NonFiniteOrigin& origin) {
  if (origin.backward)
    return "no operation has made it: check the hooks and the backward of custom functions, where "
           "they write memory themselves";
  return "it came from outside the forward: check the data of this batch and its normalization (a "
         "deviation of 0, a missing value, a cast to 16 bits). Unless code of your own that is no "
         "operation of libtorch, or another thread, wrote it";
}

bool has_zero_of_half(const NonFiniteOrigin& origin) {
  return std::any_of(origin.inputs.begin(), origin.inputs.end(), [](const OperandFacts& input) {
    return input.dtype == at::kHalf && input.min_abs == 0;
  });
}

std::string place(const NonFiniteOrigin& origin) {
  const std::string module = origin.module.empty() ? "the root module" : origin.module;
  if (origin.inside_module) return " in " + module;
  std::string text;
  if (!origin.module.empty()) text = " after " + origin.module;
  if (!origin.next_module.empty()) text += (text.empty() ? " before " : ", before ") + origin.next_module;
  return text;
}

}  // namespace

namespace nonfinite_internal {

bool has_known_domain(const NonFiniteOrigin& origin) {
  // A power is infinite only at 0: pow(1e30, 50) is merely large.
  const bool is_power = contains(origin.op, "pow");
  const bool has_zero = !origin.inputs.empty() && origin.inputs[0].min_abs == 0;
  return domain_cure(origin) != nullptr && (!is_power || has_zero);
}

std::string cure_for(const NonFiniteOrigin& origin) {
  switch (origin.cause) {
    case NonFiniteCause::kDtypeRange:
      return range_cure(origin);
    case NonFiniteCause::kUnderflow:
      return in_float32(origin) +
             ", take an epsilon that fp16 holds (1e-4; of 1e-8 it keeps 0), or train in bf16, whose range is "
             "float32's";
    case NonFiniteCause::kLossScale:
      return loss_scale_cure(origin);
    case NonFiniteCause::kOverflow:
      return "the values themselves have grown too large, and no dtype of training holds them: lower the "
             "learning rate, clip gradients, or clamp the inputs of this operation";
    case NonFiniteCause::kDomain:
      if (const char* known = domain_cure(origin)) return known;
      return "the inputs lie outside what the operation is defined for: clamp them or add an epsilon before "
             "it";
    case NonFiniteCause::kInfinities:
      return contains(origin.op, "softmax")
                 ? "a row with no finite value, for example when every position is masked: leave one "
                   "position unmasked, or mask with a large finite value instead of -inf"
                 : "infinities were combined (inf - inf, 0 * inf): write a large finite "
                   "value in their place, or select with where()";
    case NonFiniteCause::kConstant:
      return "the program wrote it here and it reached the loss or a gradient: write a large finite value, "
             "or select the values to use with where()";
    case NonFiniteCause::kParameter:
      return "it was non-finite before this batch: it was loaded so from a file, or an earlier step broke "
             "it. Nothing that follows can be right: go back to a checkpoint that is finite";
    case NonFiniteCause::kInput:
      return input_cure(origin);
    case NonFiniteCause::kAccumulation:
      return "each batch's gradient is finite and their sum is not: lower the loss scale (a dynamic one "
             "backs off by itself), add up fewer batches, or take a mode whose gradients are float32 "
             "(16-mixed) or bf16";
    case NonFiniteCause::kUnknown:
      return contains(origin.op, "::") ? "the operation could not be tried in a wider dtype: run this part "
                                         "in float32, and check its inputs"
                                       : "the code of a function of your own made it: check that code";
  }
  return {};
}

}  // namespace nonfinite_internal

std::string_view to_string(NonFiniteCause cause) {
  switch (cause) {
    case NonFiniteCause::kDtypeRange:
      return "beyond the dtype's range";
    case NonFiniteCause::kLossScale:
      return "scaled beyond the dtype's range";
    case NonFiniteCause::kOverflow:
      return "beyond float32's range";
    case NonFiniteCause::kUnderflow:
      return "below fp16's smallest number";
    case NonFiniteCause::kDomain:
      return "outside the operation's domain";
    case NonFiniteCause::kInfinities:
      return "infinities that were combined";
    case NonFiniteCause::kConstant:
      return "a non-finite constant";
    case NonFiniteCause::kParameter:
      return "a non-finite parameter or buffer";
    case NonFiniteCause::kInput:
      return "a non-finite input";
    case NonFiniteCause::kAccumulation:
      return "the sum over the accumulation window";
    case NonFiniteCause::kUnknown:
      return "unknown";
  }
  return "unknown";
}

std::string NonFiniteOrigin::to_string() const {
  std::ostringstream out;
  out << (backward ? "backward: " : "forward: ");
  if (by_autocast) {
    out << "autocast's cast to " << c10::toString(result.dtype) << " for " << called_by;
  } else {
    out << op;
    if (!called_by.empty()) out << " (called by " << called_by << ")";
  }
  if (!forward_op.empty()) out << " in the derivative of " << forward_op;
  out << place(*this);
  const bool met_it = cause == NonFiniteCause::kParameter || cause == NonFiniteCause::kInput;
  out << (met_it ? " read " : " made ") << tensor << ": " << describe(result);
  for (size_t i = 0; !met_it && i < inputs.size(); ++i)
    out << (i == 0 ? ", from " : "; ") << describe(inputs[i]);
  out << "\ncause: " << mantissa::to_string(cause);
  if (by_autocast && cause == NonFiniteCause::kDtypeRange) {
    out << " (a cast to " << c10::toString(result.dtype) << " ends at " << largest(result.dtype) << ")";
  } else if (cause == NonFiniteCause::kUnderflow) {
    out << " (fp16 ends at 6e-08: " << flushed_by << " flushed " << flushed << " to 0)";
  } else if (finite_in_float32 && (*finite_in_float32 || at::isReducedFloatingType(result.dtype))) {
    out << " (in float32 the same operation is " << (*finite_in_float32 ? "finite" : "not finite either")
        << (cause == NonFiniteCause::kDomain && has_zero_of_half(*this)
                ? "; fp16 flushes all below 6e-08 to 0"
                : "")
        << ")";
  }
  out << ". Cure: " << cure;
  return out.str();
}

}  // namespace mantissa
