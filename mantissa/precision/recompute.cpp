#include "mantissa/precision/recompute.h"

#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/core/activation_checkpointing.h"
#include "mantissa/core/default_dtype.h"
#include "mantissa/core/rng_state.h"
#include "mantissa/fp8/fp8_autocast.h"

namespace mantissa {
namespace {

using Body = std::function<at::Tensor(const at::Tensor&)>;

/// The settings of this thread that a forward pass depends on.
struct Surroundings {
  explicit Surroundings(at::DeviceType its_device) : device(its_device), autocast(current_autocast(device)) {}
  at::DeviceType device;
  AutocastOptions autocast;
  Fp8AutocastOptions fp8 = current_fp8_autocast();
  at::ScalarType default_dtype = c10::get_default_dtype_as_scalartype();
  StateDict random = snapshot(rng_state());

  at::Tensor run(const Body& body, const at::Tensor& x) const {
    const at::AutoGradMode with_graph(true);
    const Autocast region(device, autocast);
    const Fp8Autocast fp8_region(fp8);
    const DefaultDtypeGuard dtype(default_dtype);
    return body(x);
  }
};

/// What backward() needs of forward(). Autograd keeps it in an IValue.
struct Pass : torch::CustomClassHolder {
  Pass(Body its_body, at::DeviceType device) : body(std::move(its_body)), surroundings(device) {}
  Body body;
  Surroundings surroundings;
};

/// Restores the random number generators.
struct RandomNumbers {
  StateDict before = snapshot(rng_state());
  RandomNumbers() = default;
  RandomNumbers(const RandomNumbers&) = delete;
  RandomNumbers& operator=(const RandomNumbers&) = delete;
  ~RandomNumbers() { load_rng_state(StateReader(before)); }
};

class Recompute : public torch::autograd::Function<Recompute> {
 public:
  /// `leaf` requires a gradient, so that the result does, too.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& /*leaf*/, const Body& body) {
    auto pass = c10::make_intrusive<Pass>(body, x.device().type());
    context->save_for_backward({x});
    context->saved_data["pass"] = c10::IValue::make_capsule(std::move(pass));
    const Fp8GraphFollows in_backward;
    return body(x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                                "recompute: has no second derivative; call backward() without create_graph");
    torch::autograd::variable_list result(3);
    if (!gradients[0].defined()) return result;
    const auto pass = c10::static_intrusive_pointer_cast<Pass>(context->saved_data["pass"].toCapsule());
    const at::Tensor saved = context->get_saved_variables()[0];
    const at::Tensor x = saved.detach().set_requires_grad(saved.requires_grad());
    at::Tensor y;
    {
      const RandomNumbers restored;
      load_rng_state(StateReader(pass->surroundings.random));
      y = pass->surroundings.run(pass->body, x);
    }
    if (y.requires_grad()) y.backward(gradients[0]);
    result[0] = x.grad();
    return result;
  }
};

bool set_in(torch::nn::Module& module, bool on) {
  auto* const layers = dynamic_cast<HasActivationCheckpointing*>(&module);
  if (layers) layers->set_recompute(on ? &recompute : nullptr);
  return layers != nullptr;
}

}  // namespace

at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& f, const at::Tensor& x) {
  TORCH_CHECK_VALUE(f, "recompute: got no function");
  if (!at::GradMode::is_enabled()) return f(x);
  return Recompute::apply(x, at::empty({0}).requires_grad_(), f);
}

void set_activation_checkpointing(torch::nn::Module& model, bool on) {
  bool is_found = false;
  for (const auto& module : model.modules(/*include_self=*/false)) is_found |= set_in(*module, on);
  is_found |= set_in(model, on);
  TORCH_CHECK_VALUE(
      is_found || !on, "set_activation_checkpointing: ", model.name(),
      " has no layers that compute themselves again; derive it from HasActivationCheckpointing, or "
      "call recompute() in its forward()");
}

}  // namespace mantissa
