#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/core/state_dict.h"
#include "mantissa/core/weak_map.h"
#include "mantissa/fp8/linear_fp8.h"
#include "mantissa/fp8/recipe.h"
#include "mantissa/precision/precision.h"

namespace mantissa {

struct Fp8LayerOptions {
  Fp8Recipe recipe = DelayedScaling();
  /// Layers whose dotted name begins with one of these stay in high precision.
  std::vector<std::string> ignore_modules = {};
  /// Whether the first and the last torch::nn::Linear of a module compute in FP8, too.
  bool first_and_last = false;
};

/// The layers of a run that compute in FP8, and their scales: what the FP8 modes (fp8.h) have in common.
///
/// Weights: convert() marks the weights of torch::nn::Linear layers (weights/marked_weight.h) and changes no value.
/// Steps:   end_step() moves all scales on, with one reduction.
/// State:   of each layer, by its name; layers of one name (of several modules) are "fc", "fc#2", "fc#3".
class Fp8Layers {
 public:
  /// `who` begins errors: "precision 'fp8-mixed'".
  /// Errors: those of check_recipe().
  Fp8Layers(std::string who, Fp8LayerOptions options);

  /// Throws what convert() would, before anything changes.
  /// Errors: c10::TypeError for a module without a torch::nn::Linear, and for a weight in another dtype than float32, float16 and
  ///         bfloat16, unless `is_cast`; c10::NotImplementedError for a weight that is not on the CPU;
  ///         c10::ValueError for a weight that autograd computed.
  void check(const torch::nn::Module& module, bool is_cast) const;

  /// Marks the weights of a module's layers. A weight that this object has marked before keeps its scales. If a layer has an
  /// Fp8TrainingRule of the user's own, no other layer is converted; its steps end and its state is saved as well.
  void convert(const torch::nn::Module& module);

  /// Returns one row for each torch::nn::Linear of the modules that were converted, in their order.
  std::vector<LayerReport> report() const;

  /// The number of layers whose states this object keeps.
  size_t size() const { return layers_.size(); }

  /// Ends a step. `skipped`: its gradients overflowed, so that their magnitudes tell nothing.
  void end_step(bool skipped);
  /// Sets how the largest magnitudes of all ranks are found; null: there is one rank.
  void set_amax_reduction(AmaxReduction reduction) { reduction_ = std::move(reduction); }

  /// Returns {"fp8_state": {"recipe", "layers"}}; nothing without layers.
  StateDict state_dict() const;
  /// Errors: c10::ValueError for a state that load_state_dict() cannot load.
  void check_state_dict(const StateReader& state) const;
  /// Loads the states of the layers. What the state lacks starts as in a new run. Returns the differences from an
  /// uninterrupted run.
  /// Errors: c10::ValueError for a state that does not fit, before anything has changed.
  std::vector<std::string> load_state_dict(const StateReader& state);

 private:
  /// Models are not kept alive.
  using WeakWeight = WeakKey<at::Tensor>::Weak;
  struct Fp8Layer {
    std::string name;
    WeakWeight weight;
    std::shared_ptr<Fp8LinearState> state;
    StateDict first_state;  ///< that of a new run
  };
  /// What is to be done with a layer.
  struct Plan {
    LayerReport report;
    at::Tensor weight;
    bool is_marked_by_user = false;
  };
  struct Row {
    LayerReport report;
    WeakWeight weight;
  };

  std::vector<Plan> plan(const torch::nn::Module& module) const;
  /// Returns the state of a weight that is known; null for any other.
  std::shared_ptr<Fp8LinearState> find(const at::Tensor& weight) const;
  void add(const std::string& name, const at::Tensor& weight, std::shared_ptr<Fp8LinearState> state);
  /// Returns the entry of a state from which the layers can be loaded; nothing if there is none, or if it belongs to another
  /// recipe.
  std::optional<StateReader> usable_part(const StateReader& state) const;
  std::vector<std::string> load(const StateReader& layers);

  std::string who_;
  Fp8LayerOptions options_;
  AmaxReduction reduction_;
  std::vector<Fp8Layer> layers_;
  std::vector<Row> rows_;
};

}  // namespace mantissa
