#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace mantissa {

/// Returns f(x) without keeping what its backward pass needs: the backward pass computes f(x) again. This saves the memory of
/// the activations inside f, for the time of one more forward pass.
///
/// Lifetime: what f refers to must live until the backward pass. Autograd keeps f itself.
/// Regions:  the second pass has the autocast and FP8 regions of the first one, on whatever thread it runs. FP8 layers have the
///           same scales in both passes, and record their magnitudes and statistics once, in the second one.
/// Random:   the second pass draws the CPU's random numbers of the first one, and the generator is then where it was, so dropout
///           is the same.
/// Gradients: those of x and of the parameters that f uses have the bits that f(x) gives them. The result requires a gradient,
///           whatever x does. Under no-grad this is f(x).
/// Errors:   c10::ValueError for no function; c10::NotImplementedError for a second derivative; what f throws.
/// Source:   torch.utils.checkpoint and Transformer Engine's checkpoint(); Chen et al. 2016, arXiv:1604.06174.
/// Example:  recompute_test.cpp, Recompute.GivesTheBitsOfTheForwardPass
at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& f, const at::Tensor& x);

/// Makes the layers of a model recompute() themselves, if the model has HasActivationCheckpointing, as those of models/ for tokens
/// do: a transformer then keeps one activation per layer. With `on` false, they keep their activations again.
///
/// Numerics: the bits of losses and gradients do not change.
/// Errors:   c10::ValueError, with `on`, for a model without such layers.
/// Example:  tests/end_to_end/activation_memory_test.cpp, InMode.CheckpointingChangesNoBit
void set_activation_checkpointing(torch::nn::Module& model, bool on);

}  // namespace mantissa
