#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include "mantissa/core/tree.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace mantissa {

/// Something that holds until the last handle is dropped: a guard object behind a pointer that knows only how
/// to destroy it, so that each mode may return a guard of its own type. Empty when a mode needs none.
using Scope = std::shared_ptr<void>;

enum class GradientClipAlgorithm { kNorm, kValue };

/// Why an optimizer step changed nothing.
enum class SkipCause {
  kNone,                ///< it was not skipped
  kNonFiniteGradients,  ///< the scaler found inf or nan: the scale was too high, and has been lowered
  kNoGradients          ///< no loss was returned and no gradient was waiting
};

/// For users' logs: "non-finite gradients", ...
std::string_view to_string(SkipCause cause);

/// What an optimizer step did. A skipped step is an event, not an error: parameters and optimizer state are
/// as before.
struct StepResult {
  bool skipped = false;
  SkipCause cause = SkipCause::kNone;
  /// Of kNonFiniteGradients: the first parameter, in the optimizer's order, whose gradient is not finite. Its
  /// name where convert_module() has seen its module, else "group 0, parameter 3".
  std::string first_nonfinite_parameter = {};
};

/// The scaler's numbers under torch's key names, or empty: see GradScaler::state_dict().
using PrecisionState = std::map<std::string, at::Scalar>;

/// One way of training in N bits, as hooks around a training loop; this base is "32-true" and does nothing.
///
/// A loop calls, in this order:
///   convert_module                                          once, before the optimizer is made
///   setup_optimizer                                         once, after it was made
///   convert_input, forward_context, convert_output          around each forward
///   backward                                                outside the forward context
///   unscale_gradients, clip_gradients                       if it looks at gradients
///   optimizer_step                                          once per accumulation window
///
/// Threads: one thread per object.
/// Source:  spec section 2 (Lightning's Precision plugin).
/// Example: examples/any_precision.cpp.
class Precision {
 public:
  /// `name`: the canonical one from registry.h.
  explicit Precision(std::string name) : name_(std::move(name)) {}
  virtual ~Precision() = default;
  Precision(const Precision&) = delete;
  Precision& operator=(const Precision&) = delete;

  const std::string& name() const { return name_; }
  /// The kind of device that the hooks were made for; unset: any.
  virtual std::optional<at::DeviceType> device_type() const { return std::nullopt; }

  /// Converts parameters, gradients and buffers in place; optimizers and aliases made earlier follow.
  virtual void convert_module(torch::nn::Module& /*module*/) {}

  /// Gives the optimizer what the mode wants it to step, for example float32 copies of 16-bit weights. The
  /// optimizer must not have stepped yet, and this object must live as long as it is used.
  virtual void setup_optimizer(torch::optim::Optimizer& /*optimizer*/) {}

  /// While it lives, new floating-point tensors have the mode's dtype. See init.h.
  virtual Scope tensor_init_context() const { return {}; }
  /// While it lives, new modules are made in the mode's dtype and, where the mode says so, with its layers.
  virtual Scope module_init_context() const { return tensor_init_context(); }

  /// While it lives, a forward pass runs in the mode's precision.
  virtual Scope forward_context() const { return {}; }
  /// A batch's tensor as the mode's forward wants it; integers, bools and complex numbers are never touched.
  virtual at::Tensor convert_input(const at::Tensor& x) const { return x; }
  /// A forward's result for the code outside: floating-point tensors in the default dtype.
  virtual at::Tensor convert_output(const at::Tensor& y) const { return y; }
  /// The same for every tensor of a batch or a result; see core/tree.h for what may be passed.
  template <typename Tree>
  Tree convert_inputs(const Tree& tree) const {
    return map_tensors(tree, [this](const at::Tensor& x) { return convert_input(x); });
  }
  template <typename Tree>
  Tree convert_outputs(const Tree& tree) const {
    return map_tensors(tree, [this](const at::Tensor& y) { return convert_output(y); });
  }

  /// The loss whose backward() makes the gradients: `loss`, scaled where the mode scales.
  virtual at::Tensor pre_backward(const at::Tensor& loss) { return loss; }
  /// `loss` times the scale that the last pre_backward() used, without its bookkeeping: for looking at a
  /// batch again.
  virtual at::Tensor scale_loss(const at::Tensor& loss) { return loss; }
  /// pre_backward(loss).backward(). Call it outside the forward context.
  void backward(const at::Tensor& loss);

  /// Brings gradients into the loss's own units, for code that looks at them. Harmless when repeated in a
  /// step. fp16 gradients of an optimizer that unscales by itself stay as they are: see ScaledPrecision.
  virtual void unscale_gradients(torch::optim::Optimizer& /*optimizer*/) {}

  /// Unscales, then clips by the norm over all parameters of `optimizer` or by value; nothing if `clip_val`
  /// <= 0. Returns the norm before clipping (0-dim, on the device), undefined when clipping by value or not
  /// at all. Gradients that a scaler found non-finite stay as they are, for a look at them; their norm is
  /// inf.
  virtual at::Tensor clip_gradients(torch::optim::Optimizer& optimizer, double clip_val,
                                    GradientClipAlgorithm algorithm = GradientClipAlgorithm::kNorm);

  /// Runs `closure` (forward, backward, clipping; returns the loss, or an undefined tensor for none), then
  /// steps. Without a closure the gradients are those that are there; without any gradient nothing is
  /// stepped.
  virtual StepResult optimizer_step(torch::optim::Optimizer& optimizer,
                                    const std::function<at::Tensor()>& closure = nullptr);

  /// What a checkpoint must keep of this mode; empty for modes without state.
  virtual PrecisionState state_dict() const { return {}; }
  /// Errors: c10::ValueError for a state that does not fit, before anything is changed.
  virtual void load_state_dict(const PrecisionState& /*state*/) {}

 private:
  std::string name_;
};

/// All parameters of all groups of `optimizer`, each once.
std::vector<at::Tensor> main_params(torch::optim::Optimizer& optimizer);

/// Whether any parameter of `optimizer` has a gradient.
bool has_gradients(torch::optim::Optimizer& optimizer);

}  // namespace mantissa
