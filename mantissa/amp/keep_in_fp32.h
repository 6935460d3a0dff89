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

/// From the next Autocast region on, every operation that takes one of `module`'s weights runs in float32
/// inside the region, with its 16-bit inputs cast up. Neither the module nor the code that calls it changes:
/// the weight decides, wherever it is used. Returns how many weights (parameters, and buffers such as running
/// statistics) are kept; other operations and other weights run as ever.
///
/// Which:    all operations of autocast's lists for CPU and CUDA (linear, products, convolutions, layer and
///           group norm, cells, ...), batch, instance and RMS norm, LSTM, GRU, RNN. Recognised are the
///           weight, its views (t(), a slice) and its detach(), also after an optimizer's step,
///           Module::to(device) and load. The result is float32; the next product outside the module lowers
///           it again.
/// Not:      operations without a weight (softmax, activations, losses, the q*k and p*v products of
///           attention): use in_fp32(). A tensor computed from a weight (its clone, Module::clone(), weight
///           normalisation) is another tensor: mark the clone again. Regions opened by at::autocast's flags
///           instead of Autocast. A backward pass run inside a region, which torch advises against, lowers
///           what does not touch a kept weight.
/// Tied:     a weight that two modules share is kept in both.
/// Memory:   no copy of anything; 16-bit inputs get a float32 cast, which backward saves in their place.
/// Speed:    nothing while no weight is kept; else one look-up per tensor argument of those operations,
///           inside regions.
/// Threads:  safe from any thread; a region that is open already need not see a new mark.
/// Saving:   nothing is stored in the tensors: files, printing and types are stock, and a loaded model is
///           marked again by the program.
/// Errors:   c10::ValueError if `module` has no floating-point weight.
/// Example:  keep_in_fp32_test.cpp, KeepInFp32.HeadRunsInFloat32InsideARegion
size_t keep_in_fp32(torch::nn::Module& module);

/// The same for the weights under `root` that `pattern` names: a weight is kept if the pattern is the name of
/// the weight, or of a module that it is in, as named_parameters() and named_modules() write them. `*` stands
/// for any text, dots included, `?` for one character: "head", "layers.*.norm", "*.bias".
///
/// Errors: c10::ValueError, with the nearest name, if nothing matches.
size_t keep_in_fp32(torch::nn::Module& root, const std::string& pattern);

/// Undoes keep_in_fp32() for all of `module`'s weights; returns how many were kept.
size_t undo_keep_in_fp32(torch::nn::Module& module);

/// Autocast switched off for CPU and CUDA until the scope ends: operations run in the dtypes they are given.
/// For a float32 island in a forward pass; in_fp32() is this and the casts.
///
/// Threads: this thread's own state, as Autocast's.
class Fp32Region {
 public:
  Fp32Region();

 private:
  std::optional<Autocast> cpu_, cuda_;  // empty where autocast is off anyway
};

/// f(inputs...) in an Fp32Region, the inputs' float16 and bfloat16 tensors cast to float32, in trees of
/// tensors too (see map_tensors). The casts carry gradients. For what has no weight to mark, and for a module
/// with float32 weights called once: `in_fp32([&](const at::Tensor& x) { return at::softmax(x, -1); },
/// scores)`.
///
/// Numerics: float64, integers and masks keep their dtype. Casts outside of regions too, so a loss is
///           computed in float32 in the "16-true" and "bf16-true" modes as well.
template <typename F, typename... Inputs>
auto in_fp32(F&& f, const Inputs&... inputs) {
  const auto cast = [](const at::Tensor& t) {
    const bool is_16_bit = t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16;
    return is_16_bit ? t.to(at::kFloat) : t;
  };
  const Fp32Region region;
  return std::invoke(std::forward<F>(f), map_tensors(inputs, cast)...);
}

}  // namespace mantissa
