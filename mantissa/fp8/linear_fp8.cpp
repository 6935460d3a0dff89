#include "mantissa/fp8/linear_fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "mantissa/fp8/delayed_scaling_internal.h"
#include "mantissa/fp8/device_path_internal.h"
#include "mantissa/fp8/fp8_autocast.h"
#include "mantissa/fp8/input_internal.h"
#include "mantissa/fp8/layer_speed_internal.h"
#include "mantissa/fp8/linear_fp8_internal.h"
#include "mantissa/fp8/quantizer_internal.h"
#include "mantissa/fp8/statistics_internal.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {
namespace {

/// The factors before quantization, of a product whose errors are sampled.
struct Original {
  std::shared_ptr<Fp8Sample> sample;
  at::Tensor rows, weight;
};

/// What backward() needs of forward(). Autograd keeps it in an IValue, which lives as long as the graph. The tensors
/// of the factors are saved apart, so that autograd frees them when a backward pass has used them.
struct SavedFactors : torch::CustomClassHolder {
  std::shared_ptr<Fp8LinearState> state;
  std::optional<Fp8Factor> transposed_input, transposed_weight;  ///< without their tensors
  at::ScalarType input_dtype = at::kFloat, weight_dtype = at::kFloat;
  std::optional<at::ScalarType> bias_dtype;  ///< unset without a bias
  std::vector<int64_t> input_sizes;
  Fp8Roles current_scales;
  std::optional<Original> original;
  bool is_native = false;  ///< whether the device multiplies the codes
};

/// Moves the tensors of a factor to the end of `tensors`. Autograd saves none that was made in inference mode, as kept
/// codes of a weight may be.
void take_tensors(std::optional<Fp8Factor>& factor, std::vector<at::Tensor>& tensors) {
  if (!factor) return;
  for_each_tensor(*factor, [&](at::Tensor& each) {
    const at::Tensor taken = std::exchange(each, {});
    tensors.push_back(taken.is_inference() ? taken.clone() : taken);
  });
}

/// Returns a factor with the tensors that were taken from it, and moves `next` behind them.
std::optional<Fp8Factor> with_tensors(std::optional<Fp8Factor> factor,
                                      std::vector<at::Tensor>::const_iterator& next) {
  if (factor) for_each_tensor(*factor, [&](at::Tensor& each) { each = *next++; });
  return factor;
}

at::Tensor as_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

/// reshape() cannot derive the rows of an empty tensor.
at::Tensor rows_of_input(const at::Tensor& x) {
  return x.size(-1) == 0 ? x.reshape({c10::multiply_integers(x.sizes().slice(0, x.dim() - 1)), 0})
                         : as_rows(x);
}

/// What a product does beside multiplying.
struct Call {
  Fp8WeightCodes codes = {};
  bool records_graph =
      false;  ///< asked by the caller: in forward() no graph is recorded, whatever the caller does
  bool records_amaxes = true;
  Fp8Roles current_scales = {};  ///< the tensors that have none of DelayedScaling yet
};

/// Adds those of the gradients that a backward pass has computed.
void add_errors(const Original& original, const at::Tensor& rows, const at::Tensor& grad_input,
                const at::Tensor& grad_weight) {
  if (grad_input.defined())
    original.sample->add_error("grad_input", rows_of_input(grad_input),
                               reference_product(rows, original.weight.t()));
  if (grad_weight.defined())
    original.sample->add_error("grad_weight", grad_weight, reference_product(rows.t(), original.rows.t()));
}

class LinearFp8 : public torch::autograd::Function<LinearFp8> {
 public:
  using Context = torch::autograd::AutogradContext;

  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            const std::shared_ptr<Fp8LinearState>& state, const Call& call) {
    auto saved = c10::make_intrusive<SavedFactors>();
    saved->state = state;
    saved->input_dtype = x.scalar_type(), saved->weight_dtype = weight.scalar_type();
    if (bias) saved->bias_dtype = bias->scalar_type();
    saved->input_sizes = x.sizes().vec();
    saved->current_scales = call.current_scales;
    saved->is_native = state->multiplies_natively(x);
    const Fp8Product how = saved->is_native ? Fp8Product::kNativeFast : Fp8Product::kEmulated;
    std::optional<Fp8Factor> factor, input;
    const at::Tensor rows = rows_of_input(x);
    {
      Fp8Quantizer quantizer(*state, call.records_amaxes, call.current_scales);
      // First, because it refuses a weight that has changed, and no history has been written then.
      factor = quantizer.weight_factor(weight, call.codes);
      input = quantizer.quantize(rows, Fp8Role::kInput);
      if (call.records_graph && weight.requires_grad())
        saved->transposed_input = quantizer.quantize_transposed(rows, *input, Fp8Role::kInput, true);
      if (call.records_graph && x.requires_grad())
        saved->transposed_weight = quantizer.quantize_transposed(weight, *factor, Fp8Role::kWeight, false);
      quantizer.record(rows, *input, Fp8Role::kInput);
      quantizer.record(weight, *factor, Fp8Role::kWeight);
      if (auto sample = quantizer.sample_of_errors())
        saved->original = {std::move(sample), rows.detach().clone(),  // x may change later
                           mantissa::dequantize(weight.detach())};
    }
    torch::autograd::variable_list tensors;
    take_tensors(saved->transposed_input, tensors);
    take_tensors(saved->transposed_weight, tensors);
    context->save_for_backward(std::move(tensors));
    const at::Tensor its_bias = bias ? bias->detach().resolve_neg().contiguous() : at::Tensor();
    const at::Tensor y = product(*input, *factor, its_bias, x.scalar_type(), how);
    if (saved->original)
      saved->original->sample->add_error("output", y, reference_product(rows, saved->original->weight),
                                         its_bias);
    context->saved_data["factors"] = c10::IValue::make_capsule(std::move(saved));
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = weight.size(0);
    // Autograd lets a caller change no view of a function's result in place.
    return at::_unsafe_view(y, sizes);
  }

  static torch::autograd::variable_list backward(Context* context,
                                                 const torch::autograd::variable_list& gradients) {
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                                "linear_fp8: has no second derivative; call backward() without create_graph");
    const auto saved =
        c10::static_intrusive_pointer_cast<SavedFactors>(context->saved_data["factors"].toCapsule());
    const torch::autograd::variable_list tensors = context->get_saved_variables();
    auto next = tensors.begin();
    const std::optional<Fp8Factor> transposed_input = with_tensors(saved->transposed_input, next),
                                   transposed_weight = with_tensors(saved->transposed_weight, next);
    const at::Tensor& gradient = gradients[0];
    torch::autograd::variable_list result(5);
    if (!gradient.defined()) return result;
    const at::Tensor rows = rows_of_input(gradient).contiguous();
    std::optional<Fp8Factor> factor, transposed;
    if (context->needs_input_grad(0) || context->needs_input_grad(1)) {
      Fp8Quantizer quantizer(*saved->state, /*records_amaxes=*/true, saved->current_scales);
      factor = quantizer.quantize(rows, Fp8Role::kGradient);
      if (transposed_input && context->needs_input_grad(1))
        transposed = quantizer.quantize_transposed(rows, *factor, Fp8Role::kGradient, true);
      quantizer.record(rows, *factor, Fp8Role::kGradient);
    }
    const Fp8Product how = saved->is_native ? Fp8Product::kNative : Fp8Product::kEmulated;
    if (transposed_weight && context->needs_input_grad(0))
      result[0] = product(*factor, *transposed_weight, {}, saved->input_dtype, how).view(saved->input_sizes);
    if (transposed) result[1] = product(*transposed, *transposed_input, {}, saved->weight_dtype, how);
    if (saved->original) add_errors(*saved->original, rows, result[0], result[1]);
    // Autograd knows only the inputs that are tensors, and so no third one without a bias.
    if (saved->bias_dtype && context->needs_input_grad(2))
      result[2] = rows.to(at::kFloat).sum(0).to(*saved->bias_dtype);
    return result;
  }
};

/// Returns a copy of the scales and the history of `tensors` tensors.
DelayedScalingState scales_from(const StateReader& state, int64_t tensors) {
  const auto read = [&](const char* name, int64_t dimensions) {
    const at::Tensor& tensor = state.at(name).to_tensor();
    if (tensor.scalar_type() != at::kFloat || tensor.dim() != dimensions || tensor.size(-1) != tensors ||
        tensor.size(0) < 1)
      state.at(name).fail(c10::str("has shape ", tensor.sizes(), " and dtype ", tensor.scalar_type(), "; ",
                                   dimensions == 1 ? "[" : "[steps, ", tensors, "] in float32 was expected"));
    return snapshot(tensor);
  };
  return {read("scale", 1), read("amax_history", 2)};
}

/// States whose step ends with the same operators. On the CPU each state is a group of its own.
struct StepGroup {
  std::vector<DelayedScalingState*> states;
  at::ScalarType dtype;
  const DelayedScaling* recipe;
};

void add_to(std::vector<StepGroup>& groups, DelayedScalingState& state, at::ScalarType dtype,
            const DelayedScaling& recipe) {
  for (StepGroup& group : groups) {
    const at::Tensor& other = group.states[0]->scale;
    const bool fits = !state.scale.is_cpu() && other.device() == state.scale.device() &&
                      group.dtype == dtype && *group.recipe == recipe;
    if (fits) return group.states.push_back(&state);
  }
  groups.push_back({{&state}, dtype, &recipe});
}

}  // namespace

Fp8LinearState::Fp8LinearState(Fp8Recipe recipe, uint64_t seed)
    : recipe_(std::move(recipe)),
      seed_(seed),
      has_scales_(std::holds_alternative<DelayedScaling>(recipe_) ? 0 : ~0ULL) {
  if (const auto* const delayed = std::get_if<DelayedScaling>(&recipe_)) {
    forward = delayed_scaling_state(*delayed, 3);
    backward = delayed_scaling_state(*delayed, 2);
  }
}

Fp8LinearState::~Fp8LinearState() = default;

void Fp8LinearState::update_scales(const AmaxReduction& reduction) {
  mantissa::update_scales({this}, reduction);
}

namespace {

/// Sets the amaxes of the step in progress that `kept` leaves out to 0.
void drop_amaxes(const DelayedScalingState& state, GradientAmaxes kept) {
  if (kept == GradientAmaxes::kAll) return;
  if (!state.amax_history.is_cpu()) {
    const at::Tensor row = state.amax_history[0];
    row.copy_(at::where(kept == GradientAmaxes::kNone ? at::zeros_like(row, at::kBool) : at::isfinite(row),
                        row, 0));
    return;
  }
  float* const amaxes = state.amax_history.mutable_data_ptr<float>();  // row 0
  for (int64_t i = 0; i < state.amax_history.size(1); ++i)
    if (kept == GradientAmaxes::kNone || !std::isfinite(amaxes[i])) amaxes[i] = 0;
}

/// Whether the end of the step computes a scale for this tensor: it has occurred in the step, with a finite amax, and no
/// amax of the window is infinite, which would keep the old scale.
bool gets_scale(const at::Tensor& history, int64_t tensor, bool has_window) {
  const auto amax = history[0][tensor].item<float>();
  if (!std::isfinite(amax) || amax <= 0) return false;
  return !has_window || !at::isinf(history.select(1, tensor)).any().item<bool>();
}

/// Returns the tensors of a layer that have a scale after the step. Reads those without one alone, whose device would wait.
Fp8Roles with_new_scales(Fp8Roles scales, const DelayedScalingState& forward,
                         const DelayedScalingState& backward, const DelayedScaling& recipe) {
  if (scales.all()) return scales;
  const bool has_window = !recipe.amax_compute && recipe.amax_compute_algo == AmaxComputeAlgo::kMax;
  const auto look = [&](Fp8Role role, const DelayedScalingState& state, int64_t tensor) {
    const auto bit = static_cast<size_t>(role);
    if (!scales[bit]) scales[bit] = gets_scale(state.amax_history, tensor, has_window);
  };
  look(Fp8Role::kInput, forward, 0);
  look(Fp8Role::kWeight, forward, 1);
  look(Fp8Role::kGradient, backward, 0);
  return scales;
}

}  // namespace

void update_scales(c10::ArrayRef<Fp8LinearState*> layers, const AmaxReduction& reduction,
                   GradientAmaxes gradients) {
  std::vector<Fp8LinearState*> delayed;
  std::vector<DelayedScalingState*> states;  // two for each layer
  for (Fp8LinearState* const layer : layers) {
    if (!std::holds_alternative<DelayedScaling>(layer->recipe_)) continue;
    delayed.push_back(layer);
    states.insert(states.end(), {&layer->forward, &layer->backward});
  }
  std::vector<DelayedScalingState> next = copies_of(states), reduced;
  for (size_t i = 1; i < states.size(); i += 2) drop_amaxes(next[i], gradients);
  for (size_t i = 0; i < states.size(); ++i)
    if (std::get<DelayedScaling>(delayed[i / 2]->recipe_).reduce_amax) reduced.push_back(next[i]);
  if (reduction && !reduced.empty()) reduce_amaxes(reduced, reduction);  // they share tensors with `next`
  std::vector<Fp8Roles> have_scales;
  for (size_t i = 0; i < delayed.size(); ++i)
    have_scales.push_back(with_new_scales(delayed[i]->has_scales_, next[2 * i], next[2 * i + 1],
                                          std::get<DelayedScaling>(delayed[i]->recipe_)));
  std::vector<StepGroup> groups;
  for (size_t i = 0; i < states.size(); ++i) {
    const auto& recipe = std::get<DelayedScaling>(delayed[i / 2]->recipe_);
    const Fp8Pass pass = i % 2 == 0 ? Fp8Pass::kForward : Fp8Pass::kBackward;
    add_to(groups, next[i], fp8_dtype(recipe.fp8_format, pass), recipe);
  }
  for (const StepGroup& group : groups) advance_together(group.states, group.dtype, *group.recipe);
  commit(next, states);
  for (size_t i = 0; i < delayed.size(); ++i) {
    delayed[i]->has_scales_ = have_scales[i];
    if (delayed[i]->cache_) delayed[i]->cache_->is_of_this_step = false;
  }
}

std::shared_ptr<Fp8LinearState> Fp8LinearState::copy() const {
  auto copy = std::make_shared<Fp8LinearState>(recipe_);
  const std::lock_guard lock(mutex_);
  copy->load_state_dict(StateReader(state_dict()));
  copy->native_ = native_;
  return copy;
}

void Fp8LinearState::to(at::Device device) {
  for (DelayedScalingState* const state : {&forward, &backward}) {
    if (!state->scale.defined() || state->scale.device() == device) continue;
    *state = {state->scale.to(device), state->amax_history.to(device)};
  }
}

void Fp8LinearState::record_amaxes(const at::Tensor& x, const at::Tensor& weight) {
  const auto* const delayed = std::get_if<DelayedScaling>(&recipe_);
  if (!delayed) return;
  for (const at::Tensor& each : {x, weight}) fp8::check_input(each, "record_amaxes");
  const at::ScalarType dtype = fp8_dtype(delayed->fp8_format, Fp8Pass::kForward);
  const std::lock_guard lock(mutex_);
  to(x.device());
  quantize_fp8_delayed(x, dtype, forward, 0);
  quantize_fp8_delayed(mantissa::dequantize(weight), dtype, forward, 1);
}

int64_t Fp8LinearState::next_stream() {
  const std::lock_guard lock(mutex_);
  return stream_++;
}

bool Fp8LinearState::multiplies_natively(const at::Tensor& x, const Fp8Recipe& recipe) const {
  if (fp8::path_of(x) == fp8::DevicePath::kCpuKernels || native_ == Fp8Native::kOff) return false;
  if (fp8::path_of(x) == fp8::DevicePath::kNative) return true;
  return fp8_support(x.device(), recipe).support == FormatSupport::kNative;
}

bool Fp8LinearState::is_faster_in_fp8(const at::Tensor& x, at::ScalarType dtype, const at::Tensor& weight,
                                      const std::optional<Fp8Recipe>& of_region) {
  const Fp8Recipe& recipe = of_region ? *of_region : recipe_;
  if (native_ != Fp8Native::kAuto || !multiplies_natively(x, recipe)) return true;
  // The product refuses it: see state_in_region().
  if (std::holds_alternative<DelayedScaling>(recipe) && !(recipe == recipe_)) return true;
  const std::lock_guard lock(mutex_);
  const std::string variant = fp8::variant_of(recipe);
  if (const auto decided = is_faster_.find(variant); decided != is_faster_.end()) return decided->second;
  const bool trains = at::GradMode::is_enabled() || Fp8GraphFollows::is_set();
  if (!trains || x.dim() == 0 || x.numel() == 0 || weight.numel() == 0 || x.size(-1) != weight.size(-1))
    return true;
  const Fp8LayerShape shape = {
      recipe,         x.device(),    dtype, weight.scalar_type(), x.numel() / x.size(-1),
      weight.size(1), weight.size(0)};
  const bool is_faster = fp8::layer_speeds(x.device()).of(shape).is_fp8_faster();
  is_faster_.emplace(variant, is_faster);
  return is_faster;
}

StateDict Fp8LinearState::state_dict() const {
  // The bits of the seed: a node holds no number above 2^63 - 1.
  StateDict result = {{"seed", std::bit_cast<int64_t>(seed_)}, {"stream", stream_}};
  if (!is_faster_.empty()) {
    StateDict by_recipe;
    for (const auto& [variant, is_faster] : is_faster_) by_recipe[variant] = is_faster;
    result["is_faster_in_fp8"] = by_recipe;
  }
  if (!std::holds_alternative<DelayedScaling>(recipe_)) return result;
  const auto dict_of = [](const DelayedScalingState& state) {
    return StateDict{{"scale", state.scale}, {"amax_history", state.amax_history}};
  };
  result["has_scales"] = static_cast<int64_t>(has_scales_.to_ulong());
  result["forward"] = dict_of(forward);
  result["backward"] = dict_of(backward);
  return result;
}

void Fp8LinearState::load_state_dict(const StateReader& state) {
  const int64_t seed = state.at("seed").to_int(), stream = state.at("stream").to_count();
  std::map<std::string, bool> is_faster;
  if (const auto decisions = state.find("is_faster_in_fp8"))
    for (const auto& entry : decisions->to_dict())
      is_faster[entry.first] = decisions->at(entry.first).to_bool();
  if (const auto* const delayed = std::get_if<DelayedScaling>(&recipe_)) {
    DelayedScalingState next_forward = scales_from(state.at("forward"), forward.scale.numel()),
                        next_backward = scales_from(state.at("backward"), backward.scale.numel());
    const auto has_scales = static_cast<uint64_t>(state.at("has_scales").to_count());
    resize_history(next_forward, delayed->amax_history_len);
    resize_history(next_backward, delayed->amax_history_len);
    has_scales_ = has_scales;
    forward = std::move(next_forward), backward = std::move(next_backward);
  }
  seed_ = std::bit_cast<uint64_t>(seed), stream_ = stream, is_faster_ = std::move(is_faster);
  cache_.reset();
}

namespace {

/// All is checked here, so that a call that is refused has written no history.
void check_call(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                const std::shared_ptr<Fp8LinearState>& state) {
  TORCH_CHECK_VALUE(state, "linear_fp8: got no state; make one with the recipe");
  TORCH_CHECK_VALUE(
      x.defined() && weight.defined() && x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1),
      "linear_fp8: an input of ", x.defined() ? x.sizes() : at::IntArrayRef(), " does not fit a weight of ",
      weight.defined() ? weight.sizes() : at::IntArrayRef(), "; give [..., in] and [out, in]");
  TORCH_CHECK_VALUE(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)),
                    "linear_fp8: a bias of ", bias.defined() ? bias.sizes() : at::IntArrayRef(),
                    " does not fit a weight of ", weight.sizes());
  fp8::check_input(x, "linear_fp8");
  fp8::check_input(weight, "linear_fp8");
  if (bias.defined()) fp8::check_input(bias, "linear_fp8");
  TORCH_CHECK_VALUE(weight.device() == x.device() && (!bias.defined() || bias.device() == x.device()),
                    "linear_fp8: the input is on ", x.device(), ", the weight on ", weight.device(),
                    bias.defined() ? c10::str(" and the bias on ", bias.device()) : "",
                    "; move them to one device");
  check_fp8_native("linear_fp8", state->native(), x.device(), state->recipe());
}

at::Tensor apply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                 const std::shared_ptr<Fp8LinearState>& state, const Call& call) {
  check_call(x, weight, bias, state);
  const auto its_bias = bias.defined() ? std::optional(bias) : std::nullopt;
  return LinearFp8::apply(x, weight, its_bias, state, call);
}

}  // namespace

at::Tensor linear_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const std::shared_ptr<Fp8LinearState>& state, std::optional<bool> is_first_microbatch) {
  const Fp8WeightCodes codes = !is_first_microbatch   ? Fp8WeightCodes::kMake
                               : *is_first_microbatch ? Fp8WeightCodes::kMakeAndKeep
                                                      : Fp8WeightCodes::kUseKept;
  return apply(x, weight, bias, state, {codes, at::GradMode::is_enabled()});
}

at::Tensor linear_fp8_in_training(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                  const std::shared_ptr<Fp8LinearState>& state) {
  TORCH_CHECK_VALUE(state, "linear_fp8: got no state; make one with the recipe");
  const bool has_graph = at::GradMode::is_enabled();
  return apply(x, weight, bias, state,
               {.codes = has_graph ? Fp8WeightCodes::kUseKeptIfSame : Fp8WeightCodes::kUseKeptOrMake,
                .records_graph = has_graph,
                .records_amaxes = has_graph,
                .current_scales = ~state->has_scales()});
}

}  // namespace mantissa
