#include "mantissa/fp8/attention_fp8.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "mantissa/fp8/device_path_internal.h"
#include "mantissa/fp8/fp8_autocast.h"
#include "mantissa/fp8/input_internal.h"
#include "mantissa/fp8/operators_internal.h"
#include "mantissa/fp8/quantizer_internal.h"
#include "mantissa/fp8/region_state_internal.h"
#include "mantissa/fp8/restore_internal.h"
#include "mantissa/fp8/statistics_internal.h"

namespace mantissa {
namespace {

/// Products of this file stay in float32.
using WithoutAutocast = c10::impl::ExcludeDispatchKeyGuard;
WithoutAutocast without_autocast() { return WithoutAutocast(c10::autocast_dispatch_keyset); }

/// A batch of matrices in 8 bits with one scale.
struct Matrices {
  QuantizedFp8 quantized;
  std::vector<int64_t> sizes;

  /// What is to be multiplied by the scale's inverse.
  at::Tensor values() const {
    return (fp8::uses_cpu_kernels(quantized.codes) ? fp8::restored_in_float32(quantized)
                                                   : fp8::operators::restored(quantized))
        .view(sizes);
  }
};

Matrices quantized(Fp8Quantizer& quantizer, const at::Tensor& x, Fp8Role role) {
  const int64_t rows = c10::multiply_integers(x.sizes().slice(0, x.dim() - 1));
  const at::Tensor matrix = x.reshape({rows, x.size(-1)});
  const Fp8Factor factor = quantizer.quantize(matrix, role);
  quantizer.record(matrix, factor, role);
  return {std::get<QuantizedFp8>(factor.quantized), x.sizes().vec()};
}

/// Returns the product of values of two factors, which may be transposed, times both scales' inverses. Their product may be
/// outside of float32's range, where the result need not be.
at::Tensor product(const at::Tensor& a, const Matrices& a_factor, const at::Tensor& b,
                   const Matrices& b_factor) {
  const at::NoTF32Guard no_tf32;
  const at::Tensor sums = at::matmul(a, b);
  if (!fp8::uses_cpu_kernels(a_factor.quantized.codes)) {
    fp8::operators::scale_sums(sums, fp8::operators::scale_inv_of(a_factor.quantized),
                               fp8::operators::scale_inv_of(b_factor.quantized));
    return sums;
  }
  const double one = fp8::scale_inv_of(a_factor.quantized), other = fp8::scale_inv_of(b_factor.quantized);
  const auto both = static_cast<float>(one * other);
  if (std::isnormal(both)) return sums.mul_(both);
  return sums.mul_(std::max(one, other)).mul_(std::min(one, other));
}

/// What backward() needs of forward(). Autograd keeps it in an IValue, which lives as long as the graph. The tensors are saved
/// apart, so that autograd frees them when a backward pass has used them.
struct SavedMatrices : torch::CustomClassHolder {
  std::shared_ptr<Fp8LinearState> state;
  Matrices a, b;
  at::ScalarType a_dtype = at::kFloat, b_dtype = at::kFloat;
  Fp8Roles current_scales;            ///< the tensors that have no scale of DelayedScaling yet
  std::shared_ptr<Fp8Sample> sample;  ///< null unless errors are sampled
  at::Tensor original_a, original_b;  ///< for the sample

  /// Calls `visit` with each tensor.
  template <class Visit>
  void for_each_tensor(const Visit& visit) {
    for (at::Tensor* const each : {&a.quantized.codes, &a.quantized.scale_inv, &b.quantized.codes,
                                   &b.quantized.scale_inv, &original_a, &original_b})
      visit(*each);
  }
};

/// Returns a b^T of matrices [..., m, k] and [..., n, k], in float32.
class MatmulFp8 : public torch::autograd::Function<MatmulFp8> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& a,
                            const at::Tensor& b, const std::shared_ptr<Fp8LinearState>& state,
                            bool has_graph) {
    const auto no_autocast = without_autocast();
    auto saved = c10::make_intrusive<SavedMatrices>();
    saved->state = state;
    saved->current_scales = ~state->has_scales();
    saved->a_dtype = a.scalar_type(), saved->b_dtype = b.scalar_type();
    {
      Fp8Quantizer quantizer(*state, /*records_amaxes=*/has_graph, saved->current_scales);
      saved->a = quantized(quantizer, a, Fp8Role::kInput);
      saved->b = quantized(quantizer, b, Fp8Role::kWeight);
      saved->sample = quantizer.sample_of_errors();
    }
    const at::Tensor y = product(saved->a.values(), saved->a, saved->b.values().transpose(-1, -2), saved->b);
    if (saved->sample) {
      saved->original_a = a.detach().to(at::kFloat), saved->original_b = b.detach().to(at::kFloat);
      saved->sample->add_error("output", y,
                               at::matmul(saved->original_a, saved->original_b.transpose(-1, -2)));
    }
    torch::autograd::variable_list tensors;
    saved->for_each_tensor([&](at::Tensor& each) { tensors.push_back(std::exchange(each, {})); });
    context->save_for_backward(std::move(tensors));
    context->saved_data["factors"] = c10::IValue::make_capsule(std::move(saved));
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !at::GradMode::is_enabled(),
        "attention_fp8: has no second derivative; call backward() without create_graph");
    torch::autograd::variable_list result(4);
    if (!gradients[0].defined()) return result;
    const auto no_autocast = without_autocast();
    // A copy: the graph's own must not hold the tensors.
    const auto saved = c10::make_intrusive<SavedMatrices>(
        *c10::static_intrusive_pointer_cast<SavedMatrices>(context->saved_data["factors"].toCapsule()));
    const torch::autograd::variable_list tensors = context->get_saved_variables();
    auto next = tensors.begin();
    saved->for_each_tensor([&](at::Tensor& each) { each = *next++; });
    Matrices dy;
    {
      Fp8Quantizer quantizer(*saved->state, /*records_amaxes=*/true, saved->current_scales);
      dy = quantized(quantizer, gradients[0], Fp8Role::kGradient);
    }
    const at::Tensor values = dy.values(), columns = values.transpose(-1, -2);
    if (context->needs_input_grad(0))
      result[0] = product(values, dy, saved->b.values(), saved->b).to(saved->a_dtype);
    if (context->needs_input_grad(1))
      result[1] = product(columns, dy, saved->a.values(), saved->a).to(saved->b_dtype);
    if (saved->sample) add_errors(*saved, gradients[0], result);
    return result;
  }

 private:
  static void add_errors(const SavedMatrices& saved, const at::Tensor& dy,
                         const torch::autograd::variable_list& result) {
    const at::Tensor gradient = dy.detach().to(at::kFloat);
    if (result[0].defined())
      saved.sample->add_error("grad_input", result[0], at::matmul(gradient, saved.original_b));
    if (result[1].defined())
      saved.sample->add_error("grad_weight", result[1],
                              at::matmul(gradient.transpose(-1, -2), saved.original_a));
  }
};

/// Evaluation records nothing.
at::Tensor matmul_fp8(const at::Tensor& a, const at::Tensor& b,
                      const std::shared_ptr<Fp8LinearState>& layer) {
  return MatmulFp8::apply(a, b, state_in_region(layer), /*has_graph=*/at::GradMode::is_enabled());
}

/// All is checked here, so that a call that is refused has written no history.
void check(const AttentionCall& call) {
  const auto fits = [](const at::Tensor& x) { return x.defined() && x.dim() == 4; };
  TORCH_CHECK_VALUE(fits(call.query) && fits(call.key) && fits(call.value),
                    "attention_fp8: query, key and value must be [batch, heads, positions, channels]");
  for (const at::Tensor& x : {call.query, call.key, call.value}) fp8::check_input(x, "attention_fp8");
  const at::IntArrayRef q = call.query.sizes(), k = call.key.sizes(), v = call.value.sizes();
  TORCH_CHECK_VALUE(
      q[0] == k[0] && q[3] == k[3] && k.slice(0, 3) == v.slice(0, 3) && k[1] > 0 && q[1] % k[1] == 0,
      "attention_fp8: a query of ", q, " does not fit a key of ", k, " and a value of ", v,
      "; they share batch and channels, and the key's heads divide the query's");
  TORCH_CHECK_VALUE(!call.mask.defined() || (call.mask.scalar_type() == at::kBool && !call.is_causal),
                    "attention_fp8: give a mask of dtype bool, or is_causal, not both");
}

at::Tensor for_all_heads(const at::Tensor& x, int64_t heads) {
  return x.size(1) == heads ? x : x.repeat_interleave(heads / x.size(1), 1);
}

at::Tensor mask_of(const AttentionCall& call) {
  if (!call.is_causal) return call.mask;
  return at::ones({call.query.size(2), call.key.size(2)}, call.query.options().dtype(at::kBool)).tril();
}

}  // namespace

void check_attention_recipe(const Fp8Recipe& recipe) {
  TORCH_CHECK_VALUE(
      std::holds_alternative<DelayedScaling>(recipe) || std::holds_alternative<Float8CurrentScaling>(recipe),
      "attention in FP8 needs one scale for each tensor, and ", recipe_name(recipe),
      " has scales for blocks; choose DelayedScaling or Float8CurrentScaling");
}

bool computes_attention(const Fp8Recipe& recipe) {
  const auto* const delayed = std::get_if<DelayedScaling>(&recipe);
  const auto* const current = std::get_if<Float8CurrentScaling>(&recipe);
  return (delayed && delayed->fp8_dpa) || (current && current->fp8_dpa);
}

Fp8AttentionState::Fp8AttentionState(const Fp8Recipe& recipe, uint64_t seed) {
  check_attention_recipe(recipe);
  scores = std::make_shared<Fp8LinearState>(recipe, seed);
  context = std::make_shared<Fp8LinearState>(recipe, seed);
}

at::Tensor attention_fp8(const AttentionCall& call, const Fp8AttentionState& state) {
  check(call);
  const auto no_autocast = without_autocast();
  const int64_t heads = call.query.size(1);
  const at::Tensor key = for_all_heads(call.key, heads), value = for_all_heads(call.value, heads);
  at::Tensor scores =
      matmul_fp8(call.query, key, state.scores) / std::sqrt(static_cast<double>(call.query.size(3)));
  if (const at::Tensor mask = mask_of(call); mask.defined())
    scores = scores.masked_fill(mask.logical_not(), -std::numeric_limits<float>::infinity());
  const at::Tensor probabilities = at::_safe_softmax(scores, -1);
  const at::Tensor kept =
      call.dropout > 0 ? at::dropout(probabilities, call.dropout, /*train=*/true) : probabilities;
  return matmul_fp8(kept, value.transpose(-1, -2), state.context).to(call.value.scalar_type());
}

Fp8AttentionRule::Fp8AttentionRule(Fp8AttentionState state, bool belongs_to_mode)
    : state_(std::move(state)), belongs_to_mode_(belongs_to_mode) {}

bool Fp8AttentionRule::computes() const {
  const Fp8AutocastOptions region = current_fp8_autocast();
  return region.enabled && (!region.recipe || computes_attention(*region.recipe));
}

at::Tensor Fp8AttentionRule::attend(const AttentionCall& call) const { return attention_fp8(call, state_); }

std::shared_ptr<const AttentionRule> Fp8AttentionRule::for_copy() const {
  Fp8AttentionState copy(
      state_.scores->recipe());  // that of a mode begins anew: no mode ends the steps of a copy
  if (!belongs_to_mode_) copy.scores = state_.scores->copy(), copy.context = state_.context->copy();
  return std::make_shared<Fp8AttentionRule>(std::move(copy), belongs_to_mode_);
}

}  // namespace mantissa
