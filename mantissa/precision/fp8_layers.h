#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/core/layer_statistics.h"
#include "mantissa/core/state_dict.h"
#include "mantissa/core/weak_map.h"
#include "mantissa/fp8/attention_fp8.h"
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
  Fp8Native native = Fp8Native::kAuto;
  /// Whether the weights of layers that compute in FP8 are stored as codes (fp8/fp8_weight.h). Weights under an adapter, and
  /// those that a module of another kind shares, such as an embedding, stay as they are.
  bool primary_weights = false;
};

/// The layers of a run that compute in FP8, and their scales. The FP8 modes (fp8.h) share this class.
///
/// Weights: convert() marks the weights of torch::nn::Linear layers (weights/marked_weight.h) and changes no value, unless
///          they are to be stored in FP8.
/// Steps:   the scales of a layer move on when the optimizer that steps its weight has taken a step. A layer whose weight
///          no optimizer steps, because it is frozen, moves on with each step of any optimizer.
/// State:   state_dict() has an entry for each layer, under the layer's name. Where several modules have a layer "fc",
///          the later ones are "fc#2", "fc#3" and so on.
class Fp8Layers {
 public:
  /// `who`: the beginning of all errors, such as "precision 'fp8-mixed'".
  /// Errors: those of check_recipe(), and with primary weights of check_stores_weights().
  Fp8Layers(std::string who, Fp8LayerOptions options);

  /// Checks that convert() can convert the module. A mode calls it before it changes anything.
  /// `is_cast`: the mode will cast all weights to a 16-bit dtype, so they may have any dtype now.
  /// Errors: c10::TypeError for a module without a torch::nn::Linear, and for a weight in another dtype than float32,
  ///         float16 and bfloat16, unless `is_cast`; c10::ValueError for a weight that autograd computed, and if the recipe
  ///         has fp8_dpa and the module has no attention (weights/attention.h).
  void check(torch::nn::Module& module, bool is_cast) const;

  /// Marks the weights of a module's layers. A weight that this object has marked before keeps its scales.
  /// If the user has given a weight of the module an Fp8TrainingRule, no other layer is converted. This object then ends
  /// the steps of the user's layers and saves their states. If the recipe has fp8_dpa, sets the rules of the module's
  /// attentions. A rule of the user's own stays, and is treated as such layers are if it is an Fp8AttentionRule.
  void convert(torch::nn::Module& module);

  /// Returns one row for each torch::nn::Linear of the modules that were converted, in their order, and after those of a
  /// module, with fp8_dpa, one for each of its attentions.
  std::vector<LayerReport> report() const;

  /// What Precision::sample_layers() and layer_statistics() do.
  void sample(LayerSampling sampling);
  std::map<std::string, LayerStatistics> statistics() const;
  /// Returns who multiplies the codes on `device`: "FP8 products (DelayedScaling) are emulated on cpu: ...".
  std::string note(at::Device device) const;

  /// Says that an optimizer steps these weights of the model. Other tensors among them do not matter.
  void add_optimizer(const std::vector<at::Tensor>& weights);
  /// Ends a step of the optimizer that steps these weights, with one reduction.
  /// `skipped`: the step was skipped, because gradients overflowed. Their magnitudes are then dropped. A magnitude of inf is
  /// dropped in any case: another optimizer's backward pass may have left it.
  /// Errors: those of update_scales(); no layer has changed then.
  void end_step(const std::vector<at::Tensor>& weights, bool skipped);
  /// Sets how the largest magnitudes of all ranks are found; null: there is one rank.
  void set_amax_reduction(AmaxReduction reduction) { reduction_ = std::move(reduction); }

  /// Returns {"fp8_state": {"recipe", "fp8_format", "layers"}}; nothing without layers.
  StateDict state_dict() const;
  /// Errors: c10::ValueError for a state that load_state_dict() cannot load.
  void check_state_dict(const StateReader& state) const;
  /// Loads the states of the layers. What the state lacks starts as in a new run. Returns the differences from an
  /// uninterrupted run.
  /// Errors: c10::ValueError for a state that does not fit, before anything has changed.
  std::vector<std::string> load_state_dict(const StateReader& state);

 private:
  struct Fp8Layer {
    std::string name;
    std::shared_ptr<Fp8LinearState> state;
    uint64_t first_seed = 0;
    StateDict users_first_state = {};  ///< of a layer that the user has marked, else empty
    bool has_optimizer = false;        ///< an optimizer steps its weight

    /// Returns the state of a new run. The layer does not keep it, because a history takes more memory than a small weight.
    StateDict first_state() const;
  };
  struct Row {
    LayerReport report;
    WeakKey<at::Tensor>::Weak key;  ///< the weight, or the attention's identity
  };

  /// The products of an attention. They belong to no optimizer.
  struct Fp8Attention {
    Fp8AttentionState state;
    Fp8Layer scores, context;
  };

  /// `is_users`: the state may have left its beginning before it came here.
  Fp8Layer make_layer(const std::string& name, std::shared_ptr<Fp8LinearState> state, bool is_users) const;
  void convert_attentions(torch::nn::Module& module);
  /// Returns the name, or "name#2" and so on if a layer has it already.
  std::string unused(const std::string& name) const;
  /// Returns the layers whose weights are alive, and the products of attentions, by their names: in the same order on all ranks.
  std::map<std::string, const Fp8Layer*> by_name() const;
  std::vector<std::string> load(const StateReader& layers);

  std::string who_;
  Fp8LayerOptions options_;
  AmaxReduction reduction_;
  WeakMap<at::Tensor, Fp8Layer> layers_;
  WeakMap<at::Tensor, Fp8Attention> attentions_;  ///< by HasAttention::identity()
  std::vector<Row> rows_;
  uint64_t states_made_ = 0;
};

}  // namespace mantissa
