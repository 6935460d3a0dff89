#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "mantissa/core/layer_statistics.h"
#include "mantissa/core/state_dict.h"
#include "mantissa/fp8/delayed_scaling.h"
#include "mantissa/fp8/fp8_device.h"
#include "mantissa/fp8/recipe.h"

namespace mantissa {

/// Which amaxes of gradients the end of a step moves into the histories. Those of inputs and weights are always valid.
enum class GradientAmaxes : uint8_t {
  kAll,     ///< as in Transformer Engine
  kFinite,  ///< all but inf, which comes from a backward pass that overflowed
  kNone     ///< none, because the step was skipped: its gradients overflowed
};

/// What a tensor is for a product of a layer.
enum class Fp8Role : uint8_t { kInput, kWeight, kGradient };
/// A bit for each Fp8Role.
using Fp8Roles = std::bitset<3>;

class Fp8Sample;

/// What one linear layer keeps between its products: the scales of DelayedScaling, a weight's codes for the
/// micro-batches of a step, and the seed of NVFP4's random numbers.
///
/// Threads: any number may compute products of a layer at the same time. All other functions are for one thread.
/// Example: linear_fp8_test.cpp, LinearFp8.ALoadedStateContinuesBitForBit.
class Fp8LinearState final : public Stateful {
 public:
  /// Errors: those of check_recipe().
  explicit Fp8LinearState(Fp8Recipe recipe, uint64_t seed = 0);
  ~Fp8LinearState() override;
  Fp8LinearState(const Fp8LinearState&) = delete;
  Fp8LinearState& operator=(const Fp8LinearState&) = delete;

  const Fp8Recipe& recipe() const { return recipe_; }

  /// The scales of input, weight and output, and those of the gradients of output and input: Transformer Engine's
  /// order. They have tensors only with DelayedScaling. update_scales() ends a step of each.
  DelayedScalingState forward, backward;

  /// Ends a step of both states. Does nothing with other recipes.
  /// Errors: those of mantissa::update_scales(); neither state has changed then.
  void update_scales(const AmaxReduction& reduction = nullptr);

  /// Calibrates: records the largest magnitudes of an input and a weight, as a product would. Does nothing with
  /// other recipes than DelayedScaling.
  /// Errors: those of quantize_fp8(). Nothing has changed then.
  void record_amaxes(const at::Tensor& x, const at::Tensor& weight);

  /// Returns a state that begins with the values of this one, without its kept codes.
  /// Threads: as products.
  std::shared_ptr<Fp8LinearState> copy() const;

  /// Whether the device of `x` multiplies the layer's codes by instructions of its own. Otherwise its products are emulated.
  bool multiplies_natively(const at::Tensor& x) const { return multiplies_natively(x, recipe_); }
  /// Whether FP8 makes a product of an input in `dtype` and the weight faster. Decided once for each recipe, by the first
  /// product of a training step on a device that multiplies the codes itself, with fp8_native auto: its shape is measured in
  /// FP8 and in `dtype`, or found in the user's cache. True everywhere else: emulation is there to study FP8, and nothing
  /// replaces it. `of_region` is the recipe of a region, in place of the layer's own.
  bool is_faster_in_fp8(const at::Tensor& x, at::ScalarType dtype, const at::Tensor& weight,
                        const std::optional<Fp8Recipe>& of_region = {});
  Fp8Native native() const { return native_; }
  void set_native(Fp8Native native) { native_ = native; }

  /// The tensors that have a scale of DelayedScaling: those for which a step has ended with a finite amax above 0. For the
  /// others, a weight with an Fp8TrainingRule computes with the scales of Float8CurrentScaling. All of them with other recipes,
  /// which need no step.
  Fp8Roles has_scales() const { return has_scales_; }

  /// Counts from now on what quantization does to the layer's tensors, in all products that record amaxes; what was counted
  /// before is dropped. A sampled product has the same bits.
  /// Speed:  about ten passes over each tensor; with errors, each product is computed a second time in float32.
  /// Memory: with errors, the input is kept for backward beside its codes.
  void sample(LayerSampling sampling);
  /// Returns what was counted since sample(); nothing without sampling.
  LayerStatistics statistics() const;

  /// Returns a state with another recipe for one product and its gradients. It shares this one's sample and takes its next
  /// random numbers.
  std::shared_ptr<Fp8LinearState> for_product(const Fp8Recipe& recipe);

  /// The random numbers of stochastic rounding: the key, and the number of tensors that have been rounded.
  uint64_t seed() const { return seed_; }
  int64_t stream() const { return stream_; }
  /// Returns the number of the next stream of random numbers, and counts it.
  int64_t next_stream();

  /// Returns "seed", "stream" and, with DelayedScaling, "has_scales" (a bit for each Fp8Role), and "forward" and "backward" with
  /// "scale" and "amax_history" each; and "is_faster_in_fp8", by recipe, if that was decided, so that a resumed run computes the same.
  /// Memory: shares the tensors: see snapshot().
  StateDict state_dict() const override;
  /// Continues from a state that has the same recipe. A history of another length is cut or padded by
  /// resize_history(). Codes that were kept for micro-batches are dropped.
  /// Errors: c10::ValueError naming the entry that does not fit. Nothing has changed then.
  void load_state_dict(const StateReader& state) override;

 private:
  friend class Fp8Quantizer;
  friend void update_scales(c10::ArrayRef<Fp8LinearState*> layers, const AmaxReduction& reduction,
                            GradientAmaxes gradients);
  struct WeightCache;

  bool multiplies_natively(const at::Tensor& x, const Fp8Recipe& recipe) const;

  /// Moves the scales to the device of a product.
  void to(at::Device device);

  Fp8Recipe recipe_;
  Fp8Native native_ = Fp8Native::kAuto;
  std::map<std::string, bool> is_faster_;  ///< in FP8, by fp8::variant_of(recipe), once it was decided
  uint64_t seed_;
  int64_t stream_ = 0;
  Fp8Roles has_scales_;
  std::unique_ptr<WeightCache> cache_;
  std::shared_ptr<Fp8Sample> sample_;  ///< null unless the layer is sampled
  mutable std::mutex mutex_;           ///< of products, which write amaxes, the cache and the stream
};

/// Ends a step of several layers: what Fp8LinearState::update_scales() does for each of them, with one call of the
/// reduction for the amaxes of all. Each rank passes the same layers in the same order. An amax that `gradients` leaves
/// out counts as 0.
/// Errors: those of mantissa::update_scales(); no layer has changed then.
void update_scales(c10::ArrayRef<Fp8LinearState*> layers, const AmaxReduction& reduction = nullptr,
                   GradientAmaxes gradients = GradientAmaxes::kAll);

/// Returns x W^T + bias of quantized factors, with autograd: fake-quantized training on any CPU.
///
/// Shapes:      x [..., in], weight [out, in], bias [out] or undefined; any numbers of rows, also 0. Rows and columns
///              that do not fill a block are padded with zeros inside.
/// Numerics:    the recipe quantizes both factors along the dimension that the product sums over. The codes are
///              multiplied exactly, and sums are float32; products and sums below float32's normal range may become 0.
///              The sums are multiplied by the scales and the bias is added, both in float32. The result is rounded once
///              to x's dtype.
/// Backward:    the gradient of the output is quantized, in E5M2 with HYBRID. The gradients of x and weight are products
///              of quantized factors as well. A cast has derivative 1, also where it saturates. The gradient of bias is
///              the float32 sum of the gradient before its quantization.
/// Micro-batches: without `is_first_microbatch`, each call quantizes the weight. True quantizes it and keeps the codes for
///              later calls. False uses the kept codes and adds nothing to the weight's history. A hash of the weight's
///              values tells whether it has changed since. A weight that is stored in FP8 (fp8_weight.h) has its codes, and
///              `is_first_microbatch` only decides whether its amax is recorded.
/// Evaluation:  a call without a graph keeps and quantizes nothing for backward, and records the amaxes of input and
///              weight as any other call does.
/// Memory:      the codes of x are kept for backward, not x: 1 byte per value. Recipes in blocks keep codes of the
///              transposed x.
/// Devices:     on other devices than the CPU, codes and scales have the same bits, and nothing reads from the device. Where it
///              multiplies the codes itself (fp8_support()), sums are those of at::_scaled_mm: in forward() with fast
///              accumulation, as in Transformer Engine, and a bias in a 16-bit product is rounded to its dtype first.
///              Elsewhere at::mm sums in float32. The weight is quantized in each call, because only reading it would tell
///              whether it has changed: false then only leaves its history as it is.
/// Errors:      c10::ValueError for shapes that do not fit; c10::TypeError for another dtype than float32, float16 or
///              bfloat16, also of the bias; c10::Error for false without kept codes, or if the weight has changed since;
///              c10::ValueError if native products are required and the device has none. No history has changed then.
///              c10::NotImplementedError for a second derivative.
/// Source:      Transformer Engine's Linear. It uses old codes where the weight has changed.
at::Tensor linear_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const std::shared_ptr<Fp8LinearState>& state,
                      std::optional<bool> is_first_microbatch = {});

}  // namespace mantissa
