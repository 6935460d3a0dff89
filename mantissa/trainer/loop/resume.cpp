// Saves what a run needs to continue bit for bit, and loads it in a later run.
#include <algorithm>
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

#include "mantissa/core/suggest.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/weights.h"
#include "mantissa/quant/stored_weights.h"
#include "mantissa/trainer/loop/fit_run_internal.h"
#include "mantissa/weights/named_parts.h"
#include "mantissa/weights/packed_weight.h"

namespace mantissa {
namespace {

/// Returns "12 weights are quantized" or "12 weights are restored from 4 or 8 bits".
std::string counted(size_t count, const char* what) {
  if (count == 0) return "";
  return std::to_string(count) + (count == 1 ? " weight is " : " weights are ") + what;
}

/// Returns how many packed weights of a module a checkpoint has as plain numbers.
size_t count_plain(const std::map<std::string, at::Tensor>& stored, const torch::nn::Module& module) {
  size_t count = 0;
  for (const auto& [name, weight] : named_weights(module)) {
    const auto found = stored.find(name);
    if (found != stored.end() && is_packed(base_weight(weight)) && found->second.is_floating_point() &&
        found->second.sizes() == weight.sizes() && !is_stored_as(base_weight(weight), name, stored))
      ++count;
  }
  return count;
}

/// Returns "12 weights are rounded from Float to BFloat16" if weights lose bits on their way into the module.
std::string narrowed(const std::map<std::string, at::Tensor>& from, const torch::nn::Module& module) {
  size_t count = 0;
  at::ScalarType source{}, target{};
  for (const auto& [name, weight] : named_weights(module)) {
    const auto found = from.find(name);
    if (found == from.end() || is_packed(base_weight(weight)) ||
        found->second.scalar_type() == weight.scalar_type())
      continue;
    const at::ScalarType wide = found->second.scalar_type(), own = weight.scalar_type();
    if (c10::promoteTypes(wide, own) == own) continue;  // every value fits
    source = wide;
    target = own;
    ++count;
  }
  const std::string what =
      std::string("rounded from ") + c10::toString(source) + " to " + c10::toString(target);
  return counted(count, what.c_str());
}

/// Returns "12 weights are restored from 4 or 8 bits" for weights that a checkpoint has as codes and a module as plain
/// numbers, which an adapter may freeze.
std::string restored(const std::vector<std::string>& names, const std::map<std::string, at::Tensor>& own) {
  const bool train = std::none_of(names.begin(), names.end(), [&](const std::string& name) {
    const auto weight = own.find(name);
    return weight != own.end() && is_adapted(weight->second);
  });
  return counted(names.size(),
                 train ? "restored from 4 or 8 bits and train again" : "restored from 4 or 8 bits");
}

/// Returns the master weights that a checkpoint has for parameters of a module. They are more exact than the
/// weights rounded from them, so they are loaded in every mode.
std::map<std::string, at::Tensor> master_weights_for(const torch::nn::Module& module,
                                                     const Checkpoint& checkpoint, const std::string& from) {
  const StateReader state = SavedPrecision::state_in(StateReader(checkpoint.state, from));
  std::map<std::string, at::Tensor> all = master_weights_of(state), found;
  for (const auto& parameter : module.named_parameters()) {
    const auto master = all.find(parameter.key());
    if (master == all.end()) continue;
    if (master->second.sizes() != parameter.value().sizes())
      state.fail("has a master weight '" + parameter.key() +
                 "' with a different shape from the weight; resume with the task that was saved");
    found.emplace(*master);
  }
  return found;
}

void load_master_weights(torch::nn::Module& module, const std::map<std::string, at::Tensor>& masters) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : module.named_parameters())
    if (const auto master = masters.find(parameter.key());
        master != masters.end() && !is_packed(parameter.value()))
      parameter.value().copy_(master->second);
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
  const std::map<std::string, at::Tensor> masters = master_weights_for(module, checkpoint, from);
  std::map<std::string, at::Tensor> stored = checkpoint.weights;
  const std::map<std::string, at::Tensor> own = named_weights(module);
  std::vector<std::string> changes{counted(count_plain(stored, module), "quantized")};
  // A module whose weights are not packed gets the values of those that were.
  std::vector<std::string> codes = quantized_weights_of(stored);
  stored = dequantize_plain(std::move(stored), own);
  for (const std::string& kept : quantized_weights_of(stored)) std::erase(codes, kept);
  for (const auto& [name, weight] : own)
    if (const auto master = masters.find(name);
        master != masters.end() && is_packed(weight) && !is_stored_as(weight, name, stored))
      stored[name] = master->second;  // quantized from the most exact values
  changes.push_back(restored(codes, own));
  PartsLoader packed(module, stored, from);  // takes their parts out of `stored`
  changes.push_back(narrowed(stored, module));
  load_weights(plain_weights(own), stored, from);
  packed.load();
  std::erase(changes, "");
  if (!changes.empty()) {
    TORCH_WARN("'", from, "' was saved in ", SavedPrecision::name_in(StateReader(checkpoint.state)),
               ", and this run uses ", precision_.name(), ": ", join_names(changes));
  }
  for_each_callback([&](Callback& c) { c.on_load_checkpoint(trainer_, checkpoint); });
  load_master_weights(module, masters);
}

void FitRun::resume(const Checkpoint& checkpoint, const std::string& from) {
  const StateReader state(checkpoint.state, from);
  const StateReader steps = Progress::steps_in(state);
  if (steps.to_count() != checkpoint.step)
    steps.fail(c10::str("is ", steps.to_count(), ", and the checkpoint's step is ", checkpoint.step));
  Differences differences;
  for (RunPart* part : parts()) part->load(state, differences);
  is_resuming_ = false;
  if (differences.empty()) return;
  std::string text;
  for (const std::string& what : differences) text += (text.empty() ? "" : "; ") + what;
  const std::string& mode = SavedPrecision::name_in(state);
  TORCH_WARN("resuming from '", from, "'",
             mode == precision_.name() ? "" : " of " + mode + " in " + precision_.name(), ": ", text);
}

}  // namespace mantissa
