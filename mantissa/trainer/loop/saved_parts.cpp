#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <c10/util/Exception.h>

#include "mantissa/core/suggest.h"
#include "mantissa/data/loader.h"
#include "mantissa/kernels/aten/choice.h"
#include "mantissa/trainer/loop/keys_internal.h"
#include "mantissa/trainer/loop/saved_parts_internal.h"

namespace mantissa {
namespace {

constexpr const char* kBatchesPerEpoch = "number of batches an epoch";

/// Callbacks by their keys in a checkpoint.
std::map<std::string, Callback*> by_key(const std::vector<std::shared_ptr<Callback>>& callbacks) {
  std::map<std::string, Callback*> keyed;
  for (const auto& callback : callbacks)
    keyed.emplace(unused_key(keyed, callback->state_key()), callback.get());
  return keyed;
}

template <typename Object>
void save_stateful(const Object* object, const std::string& key, StateDict& state) {
  if (const auto* stateful = dynamic_cast<const Stateful*>(object))
    state.emplace(key, stateful->state_dict());
}

template <typename Object>
void load_stateful(Object* object, const StateReader& state, const std::string& key, const std::string& what,
                   Differences& differences) {
  if (auto* stateful = dynamic_cast<Stateful*>(object))
    load_if_saved(state, key, what, differences,
                  [&](const StateReader& saved) { stateful->load_state_dict(saved); });
}

}  // namespace

void SavedPrecision::save(StateDict& state) const {
  state.emplace("cpu_kernels", cpu_kernel_choices());
  state.emplace("precision", StateDict{{"name", precision_.name()}, {"state", precision_.state_dict()}});
}

void SavedPrecision::load(const StateReader& state, Differences& differences) {
  for (std::string& difference : precision_.load_state_dict(state_in(state)))
    differences.push_back(std::move(difference));
  const auto kernels = state.find("cpu_kernels");
  if (!kernels) return;
  constexpr size_t kNamed = 3;
  const auto refused = resume_cpu_kernels(kernels->to_string());
  if (refused.empty()) return;
  const size_t named = std::min(refused.size(), kNamed);
  differences.push_back(
      "its CPU kernels " +
      join_names({refused.begin(), refused.begin() + static_cast<std::ptrdiff_t>(named)}) +
      (refused.size() > named ? " and " + std::to_string(refused.size() - named) + " more" : "") +
      " are not available here, and other kernels give results that differ in the last bits");
}

void SavedObjects::save(StateDict& state) const {
  StateDict callbacks;
  for (const auto& [key, callback] : by_key(options_.callbacks)) save_stateful(callback, key, callbacks);
  state.emplace("callbacks", std::move(callbacks));
  save_stateful(&task_, "task", state);
  save_stateful(train_, "loader", state);
}

void SavedObjects::load(const StateReader& state, Differences& differences) {
  const StateReader callbacks = state.at("callbacks");
  const auto own = by_key(options_.callbacks);
  for (const auto& [key, callback] : own)
    load_stateful(callback, callbacks, key, "the callback " + key, differences);
  for (const auto& [key, saved] : callbacks.to_dict())
    if (!own.contains(key)) differences.push_back("its callback " + key + " is not in this run");
  load_stateful(&task_, state, "task", "the task", differences);
  load_stateful(train_, state, "loader", "the training loader", differences);
}

const std::string& SavedPrecision::name_in(const StateReader& state) {
  return state.at("precision").at("name").to_string();
}

StateReader SavedPrecision::state_in(const StateReader& state) { return state.at("precision").at("state"); }

std::optional<int64_t> SavedSettings::batches_per_epoch_in(const StateReader& state) {
  const auto setup = state.find("setup");
  const auto text = setup ? setup->find(kBatchesPerEpoch) : std::nullopt;
  if (!text) return std::nullopt;
  const std::string& digits = text->to_string();
  int64_t batches = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), batches);
  if (error != std::errc() || end != digits.data() + digits.size() || batches < 0 || batches > kMaxCount)
    text->fail(c10::str("is '", digits, "'; a number from 0 to ", kMaxCount, " was expected"));
  return batches;
}

StateDict SavedSettings::settings() const {
  return {{kBatchesPerEpoch, std::to_string(batches_per_epoch_)},
          {"accumulate_grad_batches", options_.accumulate_grad_batches.to_string()},
          {"gradient_clip_val", c10::str(options_.gradient_clip_val)},
          {"gradient_clip_algorithm", options_.gradient_clip_algorithm},
          {"channels_last", options_.channels_last ? "true" : "false"}};
}

void SavedSettings::save(StateDict& state) const { state.emplace("setup", settings()); }

void SavedSettings::load(const StateReader& state, Differences& differences) {
  const auto setup = state.find("setup");
  if (!setup) return;
  for (const auto& [name, value] : settings()) {
    const std::string& now = *value.get_if<std::string>();
    if (const auto before = setup->find(name); before && before->to_string() != now)
      differences.push_back("its " + name + " was " + before->to_string() + " and is " + now);
  }
}

}  // namespace mantissa
