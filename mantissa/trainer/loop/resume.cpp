// Saves what a run needs to continue bit for bit, and loads it in a later run.
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/weights.h"
#include "mantissa/trainer/loop/fit_run_internal.h"
#include "mantissa/weights/named_parts.h"

namespace mantissa {
namespace {

/// Returns "12 weights are rounded from Float to BFloat16" if weights lose bits on their way into the module.
std::string narrowed(const std::map<std::string, at::Tensor>& from, const torch::nn::Module& module) {
  int64_t count = 0;
  at::ScalarType source{}, target{};
  for (const auto& [name, weight] : named_weights(module)) {
    const auto found = from.find(name);
    if (found == from.end() || found->second.scalar_type() == weight.scalar_type()) continue;
    const at::ScalarType wide = found->second.scalar_type(), own = weight.scalar_type();
    if (c10::promoteTypes(wide, own) == own) continue;  // every value fits
    source = wide;
    target = own;
    ++count;
  }
  if (count == 0) return "";
  return std::to_string(count) + (count == 1 ? " weight is" : " weights are") + " rounded from " +
         c10::toString(source) + " to " + c10::toString(target);
}

/// Master weights are more exact than the weights rounded from them, so they are loaded in every mode.
void load_master_weights(torch::nn::Module& module, const Checkpoint& checkpoint, const std::string& from) {
  const StateReader state = StateReader(checkpoint.state, from).at("precision").at("state");
  const std::map<std::string, at::Tensor> masters = master_weights_of(state);
  const at::NoGradGuard no_grad;
  for (auto& parameter : module.named_parameters()) {
    const auto master = masters.find(parameter.key());
    if (master == masters.end()) continue;
    if (master->second.sizes() != parameter.value().sizes())
      state.fail("has a master weight '" + parameter.key() +
                 "' with a different shape from the weight; resume with the task that was saved");
    parameter.value().copy_(master->second);
  }
}

}  // namespace

std::string Callback::state_key() const { return c10::demangle(typeid(*this).name()); }

std::vector<RunPart*> FitRun::parts() {
  return {&saved_precision_, &optimizers_,     &saved_objects_, &metrics_,  &decisions_,
          &saved_settings_,  &random_numbers_, &tracer_,        &progress_, &logs_};
}

Checkpoint FitRun::checkpoint() {
  TORCH_CHECK(is_active() && optimizers_.are_set_up(),
              "Trainer::checkpoint: no fit is running; call it from a callback, or use save_weights()");
  // The weights are those of the checkpoint already, and the rest would be that of a new run.
  TORCH_CHECK(!is_resuming_,
              "Trainer::checkpoint: this run is being resumed, and its state is not loaded yet; call it from "
              "on_train_start() on");
  logs_.end_row();  // a resumed run does not log it again
  Checkpoint all;
  all.step = progress_.now().steps;
  all.weights = named_parts(named_weights(*module_));
  for (const RunPart* part : parts()) part->save(all.state);
  for_each_callback([&](Callback& c) { c.on_save_checkpoint(trainer_, all); });
  return all;
}

Checkpoint FitRun::read(const std::filesystem::path& path) {
  std::error_code error;
  // A checkpoint's own folder contains no checkpoints.
  std::optional<NewestCheckpoint> newest;
  if (std::filesystem::is_directory(path, error)) newest = load_newest(path);
  TORCH_CHECK_VALUE(newest || !std::filesystem::is_directory(path, error) ||
                        std::filesystem::exists(path / kCheckpointWeights, error),
                    "fit: '", path.string(),
                    "' holds no checkpoint; leave ckpt_path empty to begin a run, or name another folder");
  if (!newest) return load_checkpoint(path);
  for (const std::string& warning : newest->warnings) {
    TORCH_WARN("resuming from '", newest->path.string(),
               "', since a checkpoint that is or may be newer cannot be used: ", warning);
  }
  return std::move(newest->checkpoint);
}

void FitRun::load_model(const Checkpoint& checkpoint, const std::string& from) {
  torch::nn::Module& module = task_.module();
  const std::string lost = narrowed(checkpoint.weights, module);
  std::map<std::string, at::Tensor> stored = checkpoint.weights;
  PartsLoader packed(module, stored);  // takes their parts out of `stored`
  load_weights(plain_weights(named_weights(module)), stored, from);
  packed.load();
  if (!lost.empty()) {
    TORCH_WARN("'", from, "' was saved in ",
               StateReader(checkpoint.state).at("precision").at("name").to_string(), ", and this run uses ",
               precision_.name(), ": ", lost);
  }
  for_each_callback([&](Callback& c) { c.on_load_checkpoint(trainer_, checkpoint); });
  load_master_weights(module, checkpoint, from);
}

void FitRun::resume(const Checkpoint& checkpoint, const std::string& from) {
  const StateReader state(checkpoint.state, from);
  const StateReader steps = state.at("progress").at("global_step");
  if (steps.to_count() != checkpoint.step)
    steps.fail(c10::str("is ", steps.to_count(), ", and the checkpoint's step is ", checkpoint.step));
  Differences differences;
  for (RunPart* part : parts()) part->load(state, differences);
  is_resuming_ = false;
  if (differences.empty()) return;
  std::string text;
  for (const std::string& what : differences) text += (text.empty() ? "" : "; ") + what;
  const std::string& mode = state.at("precision").at("name").to_string();
  TORCH_WARN("resuming from '", from, "'",
             mode == precision_.name() ? "" : " of " + mode + " in " + precision_.name(), ": ", text);
}

}  // namespace mantissa
