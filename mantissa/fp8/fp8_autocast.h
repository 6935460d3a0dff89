#pragma once

#include <optional>

#include "mantissa/fp8/recipe.h"

namespace mantissa {

struct Fp8AutocastOptions {
  /// False: layers compute in high precision.
  bool enabled = true;
  /// With `enabled` false: the layers of DelayedScaling record the largest magnitudes of their inputs and weights, so that
  /// the next step's scales fit them.
  bool calibrating = false;
  /// Takes the place of the layers' own recipes, for example in a nested region. The layers' histories are then neither used
  /// nor changed. Attention computes in FP8 if this recipe's fp8_dpa is set. A DelayedScaling other than a layer's own has
  /// no history there, so the layer refuses it.
  std::optional<Fp8Recipe> recipe = std::nullopt;
};

/// Returns the options of this thread's region; outside of all regions, those of a disabled one. Use it for code that
/// computes later or on another thread what was computed here, such as a recomputed forward pass.
Fp8AutocastOptions current_fp8_autocast();

/// Linear layers whose weights have an Fp8TrainingRule compute in FP8 for the rest of the scope. A mode's
/// forward_context() contains such a region.
///
/// Regions nest, and the innermost one counts in all its options: a disabled region inside an enabled one computes in high
/// precision, and one without a recipe uses the layers' own. The
/// destructor restores the outer region, also after an exception. The backward pass is outside of regions: it computes as the
/// forward pass did. No region changes a scale: a step's end does (update_scales() in linear_fp8.h).
///
/// Threads: the state belongs to this thread.
/// Source:  Transformer Engine's autocast(), which changes scales at the exit of the outermost region.
/// Example: fp8_autocast_test.cpp, Fp8Autocast.F8_19_ADisabledRegionComputesInHighPrecision
class Fp8Autocast {
 public:
  explicit Fp8Autocast(const Fp8AutocastOptions& options = {});
  ~Fp8Autocast();
  Fp8Autocast(const Fp8Autocast&) = delete;
  Fp8Autocast& operator=(const Fp8Autocast&) = delete;

 private:
  Fp8AutocastOptions outer_;
};

/// While it lives, the products of this thread belong to a training step although they have no graph: the forward pass of an
/// activation checkpoint, which is computed again with one. What a training step decides is then decided in the first pass, so
/// that both passes compute the same. Use it for checkpoints of your own; recompute() does.
class Fp8GraphFollows {
 public:
  Fp8GraphFollows();
  ~Fp8GraphFollows();
  Fp8GraphFollows(const Fp8GraphFollows&) = delete;
  Fp8GraphFollows& operator=(const Fp8GraphFollows&) = delete;

  /// Whether this thread has one.
  static bool is_set();

 private:
  bool outer_;
};

}  // namespace mantissa
