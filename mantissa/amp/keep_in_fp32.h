#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/core/tree.h"

namespace torch::nn {
class Module;
}

namespace mantissa {

/// Marks `module`'s weights: from the next Autocast region on, every operation inside a region that takes one
/// of them runs in float32, with its 16-bit inputs cast up. Neither the module nor the code that calls it
/// changes; the weight decides, wherever it is used. Returns how many weights (parameters, and buffers such
/// as running statistics) are kept. Other operations and other weights run as before.
///
/// Which:    all operations of autocast's lists for CPU and CUDA (linear, products, convolutions, layer and
///           group norm, cells, ...), and batch, instance and RMS norm, LSTM, GRU and RNN. A region recognises the
///           weight, its views (t(), a slice) and what detach() returns, also after an optimizer step,
///           Module::to(device) and loading. The result is float32; the next product outside the module casts it
///           down again.
/// Not:      operations without a weight (softmax, activations, losses, the q*k and p*v products of
///           attention): use in_fp32() for them. A tensor that is computed from a weight (its clone,
///           Module::clone(), weight normalisation) is a different tensor: mark the clone again. Regions that
///           are opened through at::autocast's flags instead of Autocast do not recognise kept weights. torch
///           advises against a backward pass inside a region; there, operations that touch no kept weight are cast
///           down.
/// Tied:     a weight that two modules share is kept in both.
/// Memory:   no copies of weights. 16-bit inputs get a float32 cast, which backward saves instead of them.
/// Speed:    no cost while no weight is kept; otherwise one look-up per tensor argument of those operations,
///           inside regions.
/// Threads:  safe from any thread; a region that is already open may miss a new mark.
/// Saving:   nothing is stored in the tensors, so files, printing and types do not change. After loading a
///           model, the program has to mark it again.
/// Errors:   c10::ValueError if `module` has no floating-point weight.
/// Example:  keep_in_fp32_test.cpp, KeepInFp32.HeadRunsInFloat32InsideARegion
size_t keep_in_fp32(torch::nn::Module& module);

/// Marks the weights under `root` that `pattern` selects: a weight is kept if the pattern matches its name or
/// the name of a module that contains it, as named_parameters() and named_modules() write them. `*` stands
/// for any text, dots included, and `?` for one character: "head", "layers.*.norm", "*.bias".
///
/// Errors: c10::ValueError, which suggests the nearest name, if nothing matches.
size_t keep_in_fp32(torch::nn::Module& root, const std::string& pattern);

/// Undoes keep_in_fp32() for all of `module`'s weights; returns how many of them had been kept.
size_t undo_keep_in_fp32(torch::nn::Module& module);

/// Switches autocast off for CPU and CUDA until the scope ends: operations run in the dtypes they are given.
/// Use it for a float32 island in a forward pass; in_fp32() also makes the casts.
///
/// Threads: the state belongs to this thread, as with Autocast.
class Fp32Region {
 public:
  Fp32Region();

 private:
  std::optional<Autocast> cpu_, cuda_;  // empty where autocast is off anyway
};

/// Calls f(inputs...) in an Fp32Region, with the inputs' float16 and bfloat16 tensors cast to float32, also
/// inside trees of tensors (see map_tensors). The casts carry gradients. Use it where there is no weight to
/// mark, or for one call of a module with float32 weights:
///
///     in_fp32([&](const at::Tensor& x) { return at::softmax(x, -1); }, scores)
///
/// Numerics: float64, integers and masks keep their dtype. It casts outside of regions too, so that a loss is
///           also computed in float32 in the "16-true" and "bf16-true" modes.
template <typename F, typename... Inputs>
auto in_fp32(F&& f, const Inputs&... inputs) {
  [[maybe_unused]] const auto cast = [](const at::Tensor& t) {  // unused without inputs
    const bool is_16_bit = t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16;
    return is_16_bit ? t.to(at::kFloat) : t;
  };
  const Fp32Region region;
  return std::invoke(std::forward<F>(f), map_tensors(inputs, cast)...);
}

}  // namespace mantissa
