#include "mantissa/fp8/linear_fp8.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "mantissa/fp8/quantizer_internal.h"

namespace mantissa {
namespace {

/// What backward() needs of forward(). Autograd keeps it in an IValue.
struct SavedFactors : torch::CustomClassHolder {
  std::shared_ptr<Fp8LinearState> state;
  std::optional<Fp8Factor> transposed_input, transposed_weight;
  at::ScalarType input_dtype = at::kFloat, weight_dtype = at::kFloat;
  std::optional<at::ScalarType> bias_dtype;  ///< unset without a bias
  std::vector<int64_t> input_sizes;
};

at::Tensor as_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

/// reshape() cannot derive the rows of an empty tensor.
at::Tensor rows_of_input(const at::Tensor& x) {
  return x.size(-1) == 0 ? x.reshape({c10::multiply_integers(x.sizes().slice(0, x.dim() - 1)), 0})
                         : as_rows(x);
}

class LinearFp8 : public torch::autograd::Function<LinearFp8> {
 public:
  using Context = torch::autograd::AutogradContext;

  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            const std::shared_ptr<Fp8LinearState>& state,
                            std::optional<bool> is_first_microbatch) {
    Fp8Quantizer quantizer(*state);
    const at::Tensor rows = rows_of_input(x);
    const Fp8Factor input = quantizer.quantize(rows, Fp8Role::kInput);
    const Fp8Factor factor = quantizer.weight_factor(weight, is_first_microbatch);
    at::Tensor y = product(input, factor);
    if (bias) y.add_(bias->to(at::kFloat));
    auto saved = c10::make_intrusive<SavedFactors>();
    saved->state = state;
    saved->input_dtype = x.scalar_type(), saved->weight_dtype = weight.scalar_type();
    if (bias) saved->bias_dtype = bias->scalar_type();
    saved->input_sizes = x.sizes().vec();
    if (weight.requires_grad())
      saved->transposed_input = quantizer.quantize_transposed(rows, input, Fp8Role::kInput, true);
    if (x.requires_grad())
      saved->transposed_weight = quantizer.quantize_transposed(weight, factor, Fp8Role::kWeight, false);
    context->saved_data["factors"] = c10::IValue::make_capsule(std::move(saved));
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = weight.size(0);
    return y.to(x.scalar_type()).view(sizes);
  }

  static torch::autograd::variable_list backward(Context* context,
                                                 const torch::autograd::variable_list& gradients) {
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                                "linear_fp8: has no second derivative; call backward() without create_graph");
    const auto saved =
        c10::static_intrusive_pointer_cast<SavedFactors>(context->saved_data["factors"].toCapsule());
    const at::Tensor& gradient = gradients[0];
    torch::autograd::variable_list result(5);
    if (!gradient.defined()) return result;
    const at::Tensor rows = rows_of_input(gradient);
    Fp8Quantizer quantizer(*saved->state);
    if (context->needs_input_grad(0) || context->needs_input_grad(1)) {
      const Fp8Factor factor = quantizer.quantize(rows, Fp8Role::kGradient);
      if (saved->transposed_weight)
        result[0] =
            product(factor, *saved->transposed_weight).to(saved->input_dtype).view(saved->input_sizes);
      if (saved->transposed_input) {
        const Fp8Factor transposed = quantizer.quantize_transposed(rows, factor, Fp8Role::kGradient, true);
        result[1] = product(transposed, *saved->transposed_input).to(saved->weight_dtype);
      }
    }
    // Autograd knows only the inputs that are tensors, and so no third one without a bias.
    if (saved->bias_dtype && context->needs_input_grad(2))
      result[2] = rows.to(at::kFloat).sum(0).to(*saved->bias_dtype);
    return result;
  }
};

}  // namespace

Fp8LinearState::Fp8LinearState(Fp8Recipe recipe, uint64_t seed) : recipe_(std::move(recipe)), seed_(seed) {
  if (const auto* const delayed = std::get_if<DelayedScaling>(&recipe_)) {
    forward = delayed_scaling_state(*delayed, 3);
    backward = delayed_scaling_state(*delayed, 2);
  }
}

Fp8LinearState::~Fp8LinearState() = default;

void Fp8LinearState::update_scales(const AmaxReduction& reduction) {
  const auto* const delayed = std::get_if<DelayedScaling>(&recipe_);
  if (!delayed) return;
  mantissa::update_scales({&forward}, fp8_dtype(delayed->fp8_format, Fp8Pass::kForward), *delayed, reduction);
  mantissa::update_scales({&backward}, fp8_dtype(delayed->fp8_format, Fp8Pass::kBackward), *delayed,
                          reduction);
}

at::Tensor linear_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const std::shared_ptr<Fp8LinearState>& state, std::optional<bool> is_first_microbatch) {
  TORCH_CHECK_VALUE(state, "linear_fp8: got no state; make one with the recipe");
  TORCH_CHECK_VALUE(
      x.defined() && weight.defined() && x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1),
      "linear_fp8: an input of ", x.defined() ? x.sizes() : at::IntArrayRef(), " does not fit a weight of ",
      weight.defined() ? weight.sizes() : at::IntArrayRef(), "; give [..., in] and [out, in]");
  TORCH_CHECK_VALUE(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)),
                    "linear_fp8: a bias of ", bias.defined() ? bias.sizes() : at::IntArrayRef(),
                    " does not fit a weight of ", weight.sizes());
  const auto its_bias = bias.defined() ? std::optional(bias) : std::nullopt;
  return LinearFp8::apply(x, weight, its_bias, state, is_first_microbatch);
}

}  // namespace mantissa
