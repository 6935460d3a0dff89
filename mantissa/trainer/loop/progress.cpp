#include <optional>
#include <string>

#include <c10/util/Exception.h>

#include "mantissa/trainer/loop/progress_internal.h"
#include "mantissa/trainer/loop/saved_parts_internal.h"

namespace mantissa {
namespace {

/// Thirty thousand years.
constexpr double kMaxSeconds = 1e12;

/// Errors: c10::ValueError for a number that no run can reach, and for two that no run can have together.
FitProgress progress_of(const StateReader& state) {
  const FitProgress progress{state.at("epoch").to_count(), state.at("batches").to_count(),
                             state.at("total_batches").to_count(), state.at("global_step").to_count(),
                             state.at("validated_batches").to_int(-1, kMaxCount)};
  const auto check_at_most = [&](const char* name, int64_t value, const char* limit_name, int64_t limit) {
    if (value > limit)
      state.at(name).fail(c10::str("is ", value, ", which is above the ", limit, " of ", limit_name));
  };
  check_at_most("batches", progress.batches, "total_batches", progress.total_batches);
  // Every epoch that has ended had a batch. Another program's checkpoint may have counted epochs alone.
  if (progress.total_batches > 0)
    check_at_most("epoch", progress.epoch, "total_batches", progress.total_batches - progress.batches);
  check_at_most("skipped_steps", state.at("skipped_steps").to_count(), "global_step", progress.steps);
  return progress;
}

/// Checks the batch against the number of batches per epoch, if the checkpoint has that.
void check_inside_epoch(const StateReader& state, const FitProgress& progress) {
  const std::optional<int64_t> batches = SavedSettings::batches_per_epoch_in(state);
  if (batches && progress.batches > *batches)
    state.at("progress")
        .at("batches")
        .fail(c10::str("is ", progress.batches, ", which is above the ", *batches,
                       " batches of an epoch in setup"));
}

}  // namespace

double Progress::own_seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

FitProgress Progress::resumes_at() const {
  FitProgress progress = now_;
  progress.batches -= window_batches_;
  progress.total_batches -= window_batches_;
  return progress;
}

bool Progress::resumes_exactly() const {
  return !is_inside_window() && place_ != Place::kComputing && !is_broken_;
}

void Progress::add_step(const StepResult& step) {
  ++now_.steps;
  skipped_steps_.add(step);
}

void Progress::count_batch() {
  ++now_.batches;
  ++now_.total_batches;
}

void Progress::end_epoch() {
  ++now_.epoch;
  now_.batches = 0;
}

void Progress::save(StateDict& state) const {
  const FitProgress progress = resumes_at();
  state.emplace("progress", StateDict{{"epoch", progress.epoch},
                                      {"batches", progress.batches},
                                      {"total_batches", progress.total_batches},
                                      {"global_step", progress.steps},
                                      {"skipped_steps", skipped_steps_.count()},
                                      {"retries", retries_},
                                      {"validated_batches", progress.validated_batches}});
  state.emplace("exact", resumes_exactly());
  state.emplace("seconds", seconds());
}

StateReader Progress::steps_in(const StateReader& state) { return state.at("progress").at("global_step"); }

void Progress::load(const StateReader& state, Differences& differences) {
  const FitProgress progress = progress_of(state.at("progress"));
  check_inside_epoch(state, progress);
  if (!state.at("exact").to_bool())
    differences.emplace_back("it was saved inside a batch or an accumulation window, which is repeated");
  earlier_seconds_ = state.at("seconds").to_double(0, kMaxSeconds);
  skipped_steps_ = SkippedSteps(state.at("progress").at("skipped_steps").to_count());
  const auto retries = state.at("progress").find("retries");  // checkpoints of earlier versions have none
  retries_ = retries ? retries->to_count() : 0;
  now_ = progress;
}

}  // namespace mantissa
