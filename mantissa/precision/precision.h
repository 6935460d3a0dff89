#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/amp/optimizer_kind.h"
#include "mantissa/amp/step_result.h"
#include "mantissa/core/formats.h"
#include "mantissa/core/layer_statistics.h"
#include "mantissa/core/state_dict.h"
#include "mantissa/core/tree.h"
#include "mantissa/core/weak_map.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace mantissa {

/// A guard object of any type; its destructor runs when the last handle is dropped. It is empty if a mode
/// needs no guard.
using Scope = std::shared_ptr<void>;

enum class GradientClipAlgorithm { kNorm, kValue };

/// The formats of a mode's weights, products and gradients.
struct PrecisionTraits {
  std::optional<Format> weights = std::nullopt;  ///< unset: the weights stay as the module was built
  Format compute = Format::kFloat32;             ///< the format of matrix products
  Format gradients = Format::kFloat32;           ///< the format of the gradients that the optimizer uses
  bool scales_loss = false;                      ///< the loss is multiplied by a scale before backward()
  bool master_weights = false;                   ///< the optimizer steps float32 master weights
  bool frozen_weights = false;                   ///< layers' weights are quantized and do not train
  bool double_quantized = false;                 ///< the scales of quantized weights are quantized, too
  /// The format of products of Linear layers; unset: `compute`.
  std::optional<Format> layer_products = std::nullopt;

  bool operator==(const PrecisionTraits&) const = default;
};

/// What a mode has done with one layer of a module.
struct LayerReport {
  std::string name;                               ///< with dots; "weight" for a module that is a layer itself
  std::vector<int64_t> sizes;                     ///< of its weight; empty for an attention
  std::optional<Format> products = std::nullopt;  ///< unset: those of the rest of the model
  std::string reason = {};  ///< why the mode has left the layer as it was; "" if it has not
};

/// A precision mode: one way of training in N bits, as hooks around a training loop. This base class is
/// "32-true", which changes no weight, product or gradient.
///
/// A loop calls, in this order:
///   run_context                                             once; the scope lasts as long as the loop
///   convert_module                                          once, before the optimizer is made
///   setup_optimizer                                         once, after it was made
///   load_state_dict                                         once, when a run is resumed
///   convert_input, forward_context, convert_output          around each forward pass
///   backward                                                outside the forward context, or inside both the
///                                                           forward and the backward context
///   unscale_gradients, clip_gradients                       if the loop looks at gradients
///   optimizer_step                                          once per accumulation window
///   teardown                                                once
///
/// Threads: one thread per object.
/// Source:  Lightning's Precision plugin; docs/modes.md.
/// Example: examples/any_precision.cpp.
class Precision {
 public:
  /// `name`: the canonical name from registry.h.
  explicit Precision(std::string name, PrecisionTraits traits = {})
      : name_(std::move(name)), traits_(traits) {}
  virtual ~Precision() = default;
  Precision(const Precision&) = delete;
  Precision& operator=(const Precision&) = delete;

  // Questions that a loop, a callback or a report can ask.

  const std::string& name() const { return name_; }
  const PrecisionTraits& traits() const { return traits_; }
  /// The kind of device that the hooks were made for; unset for any device.
  virtual std::optional<at::DeviceType> device_type() const { return std::nullopt; }
  /// The factor on the loss in the last backward pass.
  /// Shape: 0-dim float32; undefined if the mode does not scale.
  /// Sync:  none.
  virtual at::Tensor loss_scale() const { return {}; }
  /// Whether the gradients of `optimizer` are multiplied by loss_scale() now. After unscale_gradients() this
  /// holds only if the optimizer divides by the scale inside its step (see ScaledPrecision).
  virtual bool are_gradients_scaled(const torch::optim::Optimizer& /*optimizer*/) const { return false; }
  /// Whether the loss scale stays as it is after an overflow, so that only another setting cures it. False if
  /// the mode does not scale.
  virtual bool is_loss_scale_fixed() const { return false; }
  /// Returns the name of a parameter, or of the parameter behind a master weight, in the module that was last
  /// passed to convert_module() with it; empty for any other tensor.
  std::string parameter_name(const at::Tensor& parameter) const;
  /// Returns one row for each layer of the modules that were converted, in their order, for modes that choose among
  /// layers; empty for other modes.
  virtual std::vector<LayerReport> layer_report() const { return {}; }
  /// Counts from now on what quantization does to the tensors of FP8 layers in training; what was counted before is dropped. A
  /// sampled step has the same bits and costs more. Call it before the first forward pass of the step.
  virtual void sample_layers(LayerSampling /*sampling*/) {}
  /// Returns what was counted since sample_layers(), by the layers' names, for the layers that have computed since;
  /// empty for modes without such layers.
  virtual std::map<std::string, LayerStatistics> layer_statistics() const { return {}; }
  /// Returns in one line who computes the products of these layers, or "".
  virtual std::string layer_note() const { return ""; }
  /// Returns the model's parameter behind a master weight, or any other tensor itself.
  virtual at::Tensor model_parameter(const at::Tensor& parameter) const { return parameter; }

  /// Replaces each element of a tensor by the largest one of all processes, in place.
  using MaxReduction = std::function<void(const at::Tensor& values)>;
  /// Tells the mode how the processes that train one model find the largest value of any of them; null: there is one
  /// process. A mode that scales by magnitudes needs it, so that all processes compute with the same scales. The base
  /// class needs none.
  virtual void set_max_reduction(const MaxReduction& /*reduction*/) {}

  // Scopes and conversions.

  /// While it lives, settings of the process have the values that the mode needs from the first forward pass
  /// to the last step, for example how float32 products are computed.
  /// Threads: such settings apply to all threads.
  virtual Scope run_context() const;
  /// Sets how float32 matrix products are computed inside run_context() (see
  /// mantissa::set_float32_matmul_precision()). Unset: the process's own setting.
  /// Errors: c10::ValueError for an unknown name and for one that contradicts the mode.
  virtual void set_float32_matmul_precision(std::optional<std::string> precision);

  /// Converts parameters, gradients and buffers in place, so that optimizers and aliases made earlier stay
  /// valid. The base class only records the parameters' names. Every module of a loop is converted, for
  /// example both of a GAN.
  virtual void convert_module(torch::nn::Module& module);
  /// As convert_module(), for a whole model whose weights are loaded next: a mode may leave out work on values
  /// that are about to be replaced.
  virtual void convert_empty(torch::nn::Module& module) { convert_module(module); }

  /// Gives the optimizer the weights that the mode wants it to step, for example master weights. The
  /// optimizer must not have stepped yet, and this object must live as long as the optimizer is used. The base
  /// class changes nothing.
  /// Errors: c10::TypeError for LBFGS if the mode does not support it; c10::ValueError if the mode has frozen every
  ///         parameter of the optimizer.
  virtual void setup_optimizer(torch::optim::Optimizer& optimizer);

  /// While it lives, new floating-point tensors have the mode's dtype (see init.h).
  virtual Scope tensor_init_context() const { return {}; }
  /// While it lives, new modules are made in the mode's dtype and, if the mode has layers of its own, with
  /// those.
  virtual Scope module_init_context() const { return tensor_init_context(); }
  /// Converts what init_module() (init.h) has made, before it is moved to its device. `is_empty`: its weights
  /// have no values yet. The base class changes nothing.
  virtual void convert_initialized(torch::nn::Module& /*module*/, bool /*is_empty*/) const {}

  /// While it lives, a forward pass runs in the mode's precision.
  virtual Scope forward_context() const { return {}; }
  /// While it lives, a backward pass inside forward_context() computes as it does outside of it, for a loop
  /// whose forward pass contains backward passes. The base class turns off autocast.
  virtual Scope backward_context() const;
  /// Returns a batch's tensor in the dtype of the mode's forward pass. Integers, bools and complex numbers
  /// stay as they are.
  virtual at::Tensor convert_input(const at::Tensor& x) const { return x; }
  /// Returns a forward pass's result for code outside the mode: floating-point tensors in the default dtype.
  virtual at::Tensor convert_output(const at::Tensor& y) const { return y; }
  /// Converts every tensor of a batch or a result; core/tree.h lists the accepted types.
  template <typename Tree>
  Tree convert_inputs(const Tree& tree) const {
    return map_tensors(tree, [this](const at::Tensor& x) { return convert_input(x); });
  }
  template <typename Tree>
  Tree convert_outputs(const Tree& tree) const {
    return map_tensors(tree, [this](const at::Tensor& y) { return convert_output(y); });
  }

  // A step.

  using LossHook = std::function<void(const at::Tensor& loss)>;
  /// Runs the backward pass of `loss`, scaled if the mode scales. Call it outside the forward context, or in
  /// backward_context().
  /// `before` is called with the loss that the backward pass starts from, that is, with the scaled loss.
  /// Errors: c10::ValueError for a loss that requires no gradient.
  virtual void backward(const at::Tensor& loss, const LossHook& before = nullptr);

  /// Brings gradients into the loss's own units, for code that reads them. A second call in a step changes
  /// nothing. Gradients of an optimizer that divides by the scale inside its step may stay scaled (see
  /// are_gradients_scaled()). Run all backward passes of a step before this or clip_gradients().
  /// Errors: c10::Error if the mode scales and backward() has added to gradients that were already unscaled
  ///         or clipped; clip_gradients() and optimizer_step() throw it, too. zero_grad() ends that state.
  virtual void unscale_gradients(torch::optim::Optimizer& /*optimizer*/) {}

  /// Unscales, then clips by the norm over all parameters of `optimizer` or by value; does nothing if
  /// `clip_val` <= 0. Returns the norm before clipping (0-dim, on the device), or an undefined tensor when
  /// clipping by value or not at all. Gradients that a scaler found non-finite stay as they are, so that they
  /// can be inspected; their norm is inf.
  /// Sync: none.
  virtual at::Tensor clip_gradients(torch::optim::Optimizer& optimizer, double clip_val,
                                    GradientClipAlgorithm algorithm = GradientClipAlgorithm::kNorm);

  using LossClosure = std::function<at::Tensor()>;
  /// Steps `optimizer` with the gradients that its parameters have. Without any gradient the step is skipped; the first
  /// time that happens although backward() has run since the step before, a warning says so.
  /// After the step, also inside forward_context(), a forward pass sees the new weights.
  StepResult optimizer_step(torch::optim::Optimizer& optimizer);
  /// Runs `closure` and steps `optimizer`. The closure does the forward pass, the backward pass and clipping,
  /// and returns the loss, or an undefined tensor if there is none. All optimizers but torch::optim::LBFGS need
  /// no closure. LBFGS calls it several times a step.
  /// Errors: c10::TypeError for LBFGS if the mode does not support it; c10::ValueError if LBFGS gets no loss.
  StepResult optimizer_step(torch::optim::Optimizer& optimizer, const LossClosure& closure);

  // State.

  /// Returns everything that a checkpoint must keep of this mode beside the model's weights: the loss scale,
  /// master weights, and whatever else it needs to resume bit for bit. Empty for a mode without state.
  virtual StateDict state_dict() const { return {}; }
  /// Resumes from the state of this mode or of another one. What the state lacks starts as in a new object, for
  /// example the loss scale. Call it after setup_optimizer(), when the module has the checkpoint's weights.
  /// Returns the differences from an uninterrupted run, such as "its loss scale is dropped", for a warning.
  /// The base class loads nothing. It reports the entries of `state` that this mode's state_dict() does not
  /// have, except master weights, because a module's weights are loaded from those. An override that loads its
  /// own entries calls it for the rest.
  /// Errors: c10::ValueError for a state that does not fit, before anything is changed.
  virtual std::vector<std::string> load_state_dict(const StateReader& state);

  /// Returns what the mode knows about gradients of `optimizer` that wait for its step, for a checkpoint that
  /// also holds those gradients: the loss scale that they carry, or that they have been divided by it. Empty for
  /// a mode without a loss scale, whose gradients are in the loss's own units.
  virtual StateDict gradient_state(const torch::optim::Optimizer& /*optimizer*/) const { return {}; }
  /// Whether gradients can wait for their step in this mode if gradient_state() of this or another mode was
  /// `state` when they were saved. Without a loss scale this mode refuses gradients that have been scaled: they
  /// may have overflowed, and only a mode with a scale would skip their step.
  virtual bool can_take_gradients(const StateReader& state) const;
  /// Loads what gradient_state() of this or another mode returned, if can_take_gradients(). Call it after
  /// load_state_dict(), when the parameters of `optimizer` have the gradients of the checkpoint. Gradients that
  /// were saved with another loss scale, or without one, are brought to this mode's.
  /// Errors: c10::ValueError for a state that does not fit, before anything is changed.
  virtual void load_gradient_state(torch::optim::Optimizer& /*optimizer*/, const StateReader& /*state*/) {}

  /// Ends a run: drops what the mode has recorded about gradients that wait for a step. The module, the
  /// optimizers and the state stay as they are, and another run may follow. Once the next run calls
  /// setup_optimizer(), state_dict() has only that run's master weights.
  virtual void teardown() {}

 protected:
  /// The work of both optimizer_step() functions, for a mode that works before or after each step. `closure`:
  /// for LBFGS, which computes the gradients inside its step; null for all others, which have them already.
  virtual StepResult step(torch::optim::Optimizer& optimizer, const LossClosure& closure);
  /// Throws if the mode does not support LBFGS.
  virtual void check_line_search() const {}
  const std::optional<std::string>& float32_matmul_precision() const { return float32_matmul_precision_; }
  /// Throws for a loss that has no backward pass.
  void check_requires_gradient(const at::Tensor& loss) const;

 private:
  void warn_of_no_gradients(const torch::optim::Optimizer& optimizer);

  std::string name_;
  PrecisionTraits traits_;
  std::optional<std::string> float32_matmul_precision_;
  WeakMap<at::Tensor, std::string> names_;
  bool has_run_backward_ = false, has_warned_of_no_gradients_ = false;
};

/// Returns all parameters of all groups of `optimizer`, each once.
std::vector<at::Tensor> main_params(const torch::optim::Optimizer& optimizer);

/// Whether any parameter of `optimizer` has a gradient.
bool has_gradients(const torch::optim::Optimizer& optimizer);

/// Returns the weights in a mode's state_dict() that are more exact than the model's own, by the names of the
/// model's parameters; empty if there are none. A run in another mode starts best from these weights.
std::map<std::string, at::Tensor> master_weights_of(const StateReader& precision_state);

}  // namespace mantissa
