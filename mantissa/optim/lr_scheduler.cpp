#include "mantissa/optim/lr_scheduler.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include <c10/util/Exception.h>

namespace mantissa {
namespace {

const WarmupCosineOptions& validated(const WarmupCosineOptions& options) {
  TORCH_CHECK_VALUE(options.warmup_steps >= 0, "WarmupCosineLR: warmup_steps ", options.warmup_steps,
                    " is invalid; it must be 0 or more");
  TORCH_CHECK_VALUE(options.total_steps > options.warmup_steps, "WarmupCosineLR: total_steps ",
                    options.total_steps, " leaves no step after warmup_steps ", options.warmup_steps,
                    "; raise total_steps or shorten the warm-up");
  TORCH_CHECK_VALUE(options.final_factor >= 0 && options.final_factor <= 1, "WarmupCosineLR: final_factor ",
                    options.final_factor, " is invalid; it must lie in [0, 1]");
  return options;
}

}  // namespace

double warmup_cosine_factor(const WarmupCosineOptions& options, int64_t step) {
  if (step < options.warmup_steps) return static_cast<double>(step + 1) / options.warmup_steps;
  if (step >= options.total_steps) return options.final_factor;
  const double progress =
      static_cast<double>(step - options.warmup_steps) / (options.total_steps - options.warmup_steps);
  return options.final_factor +
         (1 - options.final_factor) * ((1 + std::cos(std::numbers::pi * progress)) / 2);
}

WarmupCosineLR::WarmupCosineLR(torch::optim::Optimizer& optimizer, const WarmupCosineOptions& options)
    : LRScheduler(optimizer),
      optimizer_(optimizer),
      options_(validated(options)),
      base_lrs_(get_current_lrs()) {
  set_rates(0);
}

void WarmupCosineLR::resume_at(int64_t steps_taken) {
  TORCH_CHECK_VALUE(steps_taken >= 0 && steps_taken <= std::numeric_limits<unsigned>::max(),
                    "WarmupCosineLR::resume_at: ", steps_taken,
                    " steps cannot have been taken; give the number of",
                    " step() calls that the checkpoint names");
  set_rates(steps_taken);
  step_count_ = static_cast<unsigned>(steps_taken);
}

StateDict WarmupCosineLR::state_dict() const {
  return {{"step_count", steps_taken()}, {"base_lrs", StateList(base_lrs_.begin(), base_lrs_.end())}};
}

void WarmupCosineLR::load_state_dict(const StateReader& state) {
  const int64_t steps = state.at("step_count").to_int(0, std::numeric_limits<unsigned>::max());
  const StateReader saved = state.at("base_lrs");
  std::vector<double> rates;
  for (size_t i = 0; i < saved.to_list().size(); ++i) rates.push_back(saved.at(i).to_double());
  if (rates.size() != base_lrs_.size()) {
    saved.fail(c10::str("are ", rates.size(), "; the schedule is of ", base_lrs_.size(),
                        " parameter groups: load it into one of the groups that it was saved with"));
  }
  base_lrs_ = std::move(rates);
  step_count_ = static_cast<unsigned>(steps);
}

// The base class calls this before it counts the step that just ended, so the next step is one further.
std::vector<double> WarmupCosineLR::get_lrs() { return rates_at(int64_t{step_count_} + 1); }

std::vector<double> WarmupCosineLR::rates_at(int64_t step) const {
  TORCH_CHECK(base_lrs_.size() == optimizer_.param_groups().size(), "WarmupCosineLR: the optimizer now has ",
              optimizer_.param_groups().size(), " parameter groups, and had ", base_lrs_.size(),
              " when the schedule was made; add groups first, then make the schedule");
  const double factor = warmup_cosine_factor(options_, step);
  std::vector<double> rates = base_lrs_;
  for (double& rate : rates) rate *= factor;
  return rates;
}

void WarmupCosineLR::set_rates(int64_t step) {
  const std::vector<double> rates = rates_at(step);
  for (size_t i = 0; i < rates.size(); ++i) optimizer_.param_groups()[i].options().set_lr(rates[i]);
}

}  // namespace mantissa
