// Which of a folder's checkpoints a ModelCheckpoint keeps: its own, the best of them, and what a failed write
// leaves.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "mantissa/io/checkpoint.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/manifest.h"
#include "mantissa/trainer/callbacks/checkpoint_keeper_internal.h"
#include "mantissa/trainer/callbacks/failure_of_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {
namespace {

/// Returns the state in `checkpoint` of the callback whose run is `run`; null if that callback has not saved
/// one.
/// Errors: those of read_manifest().
std::optional<StateDict> state_of_run(const std::filesystem::path& checkpoint, const std::string& run) {
  const Manifest manifest = read_manifest(checkpoint);
  const auto callbacks = StateReader(manifest.state, checkpoint.string()).find("callbacks");
  if (!callbacks) return std::nullopt;
  for (const auto& [key, value] : callbacks->to_dict()) {
    const auto* state = value.get_if<StateDict>();
    if (!state || !state->contains("run")) continue;
    const auto* saved = state->at("run").get_if<std::string>();
    if (saved && *saved == run) return *state;
  }
  return std::nullopt;
}

}  // namespace

/// Loads the state from this callback's own checkpoint of `steps`, if there is one. A run may resume from the
/// checkpoint of another ModelCheckpoint, which saves before this one and so holds an older state of it.
void ModelCheckpoint::Keeper::load_newer_own_state(int64_t steps) {
  const std::string last = state_.last_path.filename().string();
  for (const CheckpointEntry& entry : list_checkpoints(dirpath_)) {
    if (entry.step != steps || !entry.problem.empty()) continue;
    std::optional<StateDict> own;
    if (!failure_of([&] { own = state_of_run(entry.path, state_.run); }).empty() || !own) continue;
    if (entry.path.filename() != last) load_state_dict(StateReader(*own, entry.path.string()));
    return;
  }
}

/// Compares the state with the contents of the folder, where another run's checkpoints may have the same
/// names.
void ModelCheckpoint::Keeper::reconcile_with_folder(const Trainer& trainer) {
  const FitProgress now = trainer.resumes_at();
  load_newer_own_state(now.steps);
  std::set<std::string> mine;
  int64_t of_others = 0, later = 0;
  bool resumes_from_here = false;
  for (const CheckpointEntry& entry : list_checkpoints(dirpath_)) {
    const std::string name = entry.path.filename().string();
    bool is_readable = entry.problem.empty(), is_mine = false;
    if (is_readable)
      is_readable = failure_of([&] { is_mine = state_of_run(entry.path, state_.run).has_value(); }).empty();
    if (!is_readable) continue;  // nothing is lost when its name is reused
    if (is_mine && entry.step > now.steps) {
      ++later;  // this run will get there again
      continue;
    }
    of_others += !is_mine;
    resumes_from_here |= is_mine && entry.step == now.steps;
    (is_mine ? mine : state_.taken).insert(name);
  }
  const std::string last = state_.last_path.filename().string();
  std::string gone;
  std::erase_if(state_.best, [&](const auto& kept) {
    if (mine.contains(kept.first)) return false;
    gone += (gone.empty() ? "'" : ", '") + kept.first + "'";
    return true;
  });
  if (!mine.contains(last)) {
    state_.last_path.clear();
    state_.last_step = -1;
  }
  for (const std::string& name : mine)
    if (name != last && !state_.best.contains(name)) state_.taken.insert(name);
  note_best();
  if (!state_.last_path.empty() && state_.last_step == now.steps) {
    // The position from which this run resumes is saved already; a checkpoint from inside a batch would be
    // worse.
    state_.last_saved = std::array{now.steps, now.epoch, now.batches};
    state_.last_validated = now.validated_batches;
    state_.is_scored = options_.monitor.empty() || state_.best.contains(last);
  }
  const std::string folder = "ModelCheckpoint: '" + dirpath_.string() + "' ";
  // Two cases need no warning. A folder without any checkpoint of this run is new to it. If the run was
  // resumed from the folder of another ModelCheckpoint, this one may have saved since.
  if (!gone.empty() && !mine.empty() && later == 0) {
    TORCH_WARN(folder, "no longer holds this run's ", gone,
               "; the best checkpoints are chosen from the rest. To include what is missing, move it back "
               "before resuming");
  }
  if (of_others > 0) {
    TORCH_WARN(
        folder, "holds ", of_others, of_others == 1 ? " checkpoint" : " checkpoints",
        " of another run, and resuming from the newest one there may pick that run's; give this run its own "
        "folder, or resume that run (ckpt_path)");
  }
  if (later > 0 && resumes_from_here) {
    TORCH_WARN(folder, "holds ", later, later == 1 ? " checkpoint" : " checkpoints",
               " of this run with more than the ", now.steps,
               " steps from which it resumes; until it has taken as many again, the newest checkpoint there "
               "is from before the resume");
  }
}

/// Ranks the newest checkpoint instead of writing one now, from which a run would resume less exactly.
void ModelCheckpoint::Keeper::rank_last(double score) {
  Write ranked;
  const std::string name = state_.last_path.filename().string();
  state_.is_scored = true;
  keep(name, score, ranked);
  for (const std::string& other : ranked.dropped)
    if (other != name) state_.to_remove.insert(other);
}

/// Removes a checkpoint that could not be written from the best ones; those that it replaced still exist. It is the
/// newest one, because each save waits for the write before it.
void ModelCheckpoint::Keeper::undo_failed_writes() {
  std::optional<Write> failed;
  {
    const std::lock_guard lock(outcome_->mutex);
    failed = std::exchange(outcome_->failed, std::nullopt);
    state_.to_remove.merge(std::exchange(outcome_->not_removed, {}));
  }
  if (!failed) return;
  state_.best.erase(failed->name);
  for (const auto& [name, kept] : failed->before) state_.best[name] = kept;
  state_.to_remove.merge(failed->dropped);
  state_.last_path = failed->last;
  const std::string last = state_.last_path.filename().string();
  std::erase_if(state_.to_remove,
                [&](const std::string& name) { return last == name || state_.best.contains(name); });
  state_.last_saved.reset();
  note_best();
}

bool ModelCheckpoint::Keeper::is_better(const Kept& a, const Kept& b) const {
  // A nan is worse than any number, as in Lightning.
  if (std::isnan(a.score) || std::isnan(b.score)) {
    if (std::isnan(a.score) != std::isnan(b.score)) return std::isnan(b.score);
  } else if (a.score != b.score) {
    return options_.mode == "min" ? a.score < b.score : a.score > b.score;
  }
  return a.order > b.order;
}

std::map<std::string, ModelCheckpoint::Keeper::Kept>::const_iterator
ModelCheckpoint::Keeper::worst_of_the_best() const {
  return std::max_element(state_.best.begin(), state_.best.end(),
                          [&](const auto& a, const auto& b) { return is_better(a.second, b.second); });
}

void ModelCheckpoint::Keeper::keep(const std::string& name, std::optional<double> score, Write& write) {
  if (options_.save_top_k == 0 || (!options_.monitor.empty() && !score)) return;
  state_.best[name] = {score.value_or(0), state_.order++};
  while (options_.save_top_k > 0 && static_cast<int64_t>(state_.best.size()) > options_.save_top_k) {
    const auto worst = worst_of_the_best();
    write.dropped.insert(worst->first);
    if (worst->first != name) write.before.emplace_back(*worst);
    state_.best.erase(worst);
  }
  note_best();
}

void ModelCheckpoint::Keeper::note_best() {
  state_.best_path.clear();
  state_.best_score.reset();
  const auto best =
      std::min_element(state_.best.begin(), state_.best.end(),
                       [&](const auto& a, const auto& b) { return is_better(a.second, b.second); });
  if (best == state_.best.end()) return;
  state_.best_path = dirpath_ / best->first;
  if (!options_.monitor.empty()) state_.best_score = best->second.score;
}

}  // namespace mantissa
