// What a run must remember to go on bit for bit, and how it takes it up again.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Type.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "mantissa/core/rng_state.h"
#include "mantissa/core/suggest.h"
#include "mantissa/io/checkpoint.h"
#include "mantissa/io/checkpoint_folder.h"
#include "mantissa/io/weights.h"
#include "mantissa/kernels/aten/choice.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {
namespace {

constexpr const char* kBatchesAnEpoch = "number of batches an epoch";
/// Thirty thousand years.
constexpr double kMaxSeconds = 1e12;

StateDict to_state(const FitProgress& progress, int64_t skipped_steps) {
  return {{"epoch", progress.epoch},
          {"batches", progress.batches},
          {"total_batches", progress.total_batches},
          {"global_step", progress.steps},
          {"skipped_steps", skipped_steps},
          {"validated_batches", progress.validated_batches}};
}

/// Errors: c10::ValueError for a number that no run can have come to, and for two that no run can have
///         together.
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

/// Of a checkpoint that says how many batches its run's epochs had: it cannot be further on in one.
void check_inside_epoch(const StateReader& state, const FitProgress& progress) {
  const auto setup = state.find("setup");
  const auto text = setup ? setup->find(kBatchesAnEpoch) : std::nullopt;
  if (!text) return;
  const std::string& digits = text->to_string();
  int64_t batches = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), batches);
  if (error != std::errc() || end != digits.data() + digits.size() || batches < 0 || batches > kMaxCount)
    text->fail(c10::str("is '", digits, "'; a number from 0 to ", kMaxCount, " was expected"));
  if (progress.batches > batches)
    state.at("progress")
        .at("batches")
        .fail(c10::str("is ", progress.batches, ", which is above the ", batches,
                       " batches of an epoch in setup"));
}

/// `name`, with a number where there are several of it.
template <typename Keyed>
std::string unused_key(const Keyed& keyed, const std::string& name) {
  std::string key = name;
  for (int n = 2; keyed.contains(key); ++n) key = name + "#" + std::to_string(n);
  return key;
}

/// Callbacks by what a checkpoint calls them: their class.
std::map<std::string, Callback*> by_key(const std::vector<std::shared_ptr<Callback>>& callbacks) {
  std::map<std::string, Callback*> keyed;
  for (const auto& callback : callbacks)
    keyed.emplace(unused_key(keyed, callback->state_key()), callback.get());
  return keyed;
}

/// "12 weights from Float to BFloat16" for weights that lose bits on their way into the module.
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

}  // namespace

std::string Callback::state_key() const { return c10::demangle(typeid(*this).name()); }

// Gradients of a window that has not ended are not kept: it is begun again.
FitProgress Trainer::resumes_at() const {
  FitProgress progress = progress_;
  progress.batches -= window_batches_;
  progress.total_batches -= window_batches_;
  return progress;
}

/// Whether the model's weights or the mode's state hold a parameter of an optimizer.
std::function<bool(const at::Tensor&)> Trainer::parameters_kept_elsewhere() const {
  std::set<const at::TensorImpl*> of_model;
  for (const at::Tensor& parameter : module_->parameters()) of_model.insert(parameter.unsafeGetTensorImpl());
  return [of_model, this](const at::Tensor& parameter) {
    return of_model.contains(precision_->model_parameter(parameter).unsafeGetTensorImpl());
  };
}

/// What a task that steps by itself has summed up and not stepped on: gradients by their weights' names.
StateDict Trainer::unstepped_gradients() const {
  StateDict gradients;
  if (std::find(unstepped_.begin(), unstepped_.end(), true) == unstepped_.end()) return gradients;
  std::set<const at::TensorImpl*> used;
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    if (unstepped_[i]) continue;
    for (const at::Tensor& parameter : main_params(*optimizers_[i].optimizer))
      used.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& parameter : module_->named_parameters()) {
    const at::Tensor& gradient = parameter.value().grad();
    if (gradient.defined() && !used.contains(parameter.value().unsafeGetTensorImpl()))
      gradients.emplace(parameter.key(), gradient.is_sparse() ? gradient.to_dense() : gradient);
  }
  return gradients;
}

void Trainer::load_unstepped_gradients(const StateReader& state) {
  const auto parameters = module_->named_parameters();
  for (const auto& [name, value] : state.to_dict()) {
    const StateReader saved = state.at(name);
    const at::Tensor* parameter = parameters.find(name);
    if (!parameter) saved.fail("is of no weight of this model; resume with the task that was saved");
    const at::Tensor& gradient = saved.to_tensor();
    if (gradient.sizes() != parameter->sizes())
      saved.fail("has another shape than its weight; resume with the task that was saved");
    parameter->mutable_grad() = at::empty_like(*parameter).copy_(gradient);  // laid out as backward() does
  }
}

Checkpoint Trainer::checkpoint() {
  TORCH_CHECK(task_ && stage_ == Stage::kFit && !optimizers_.empty(),
              "Trainer::checkpoint: no fit is going on; call it from a callback, or use save_weights()");
  end_row();  // a run that goes on from here does not log it again
  const FitProgress progress = resumes_at();
  StateList optimizers, own, schedules, learned, unstepped;
  const auto is_kept_elsewhere = parameters_kept_elsewhere();
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    const OptimizerConfig& config = optimizers_[i];
    optimizers.emplace_back(optimizer_state(*config.optimizer));
    own.emplace_back(own_parameters(*config.optimizer, is_kept_elsewhere));
    StateDict schedule;
    if (config.scheduler) schedule.emplace("scheduler", scheduler_state(*config.scheduler));
    if (config.plateau) schedule.emplace("plateau", scheduler_state(*config.plateau));
    schedules.emplace_back(std::move(schedule));
    learned.emplace_back(has_stepped(i));
    unstepped.emplace_back(static_cast<bool>(unstepped_[i]));
  }
  StateDict callbacks;
  for (const auto& [key, callback] : by_key(options_.callbacks))
    if (const auto* stateful = dynamic_cast<const Stateful*>(callback))
      callbacks.emplace(key, stateful->state_dict());
  Checkpoint all;
  all.step = progress.steps;
  all.weights = named_weights(*module_);
  all.state = {{"progress", to_state(progress, skipped_steps_.count())},
               {"exact", resumes_exactly()},
               {"seconds", seconds_so_far()},
               {"cpu_kernels", cpu_kernel_choices()},
               {"precision", StateDict{{"name", precision_->name()}, {"state", precision_->state_dict()}}},
               {"optimizers", std::move(optimizers)},
               {"own_parameters", std::move(own)},
               {"schedules", std::move(schedules)},
               {"learned", std::move(learned)},
               {"callbacks", std::move(callbacks)},
               {"training_metrics", training_metrics_.state_dict()},
               {"epoch_metrics", mantissa::to_state(epoch_metrics_)},
               {"validation_metrics", mantissa::to_state(validation_metrics_)},
               {"callback_metrics", mantissa::to_state(callback_metrics_)},
               {"setup", setup_state()},
               // Of a run that goes on and has not begun its first batch: still those it goes on with.
               {"rng", resume_rng_       ? *resume_rng_
                       : validation_rng_ ? *validation_rng_
                                         : StateValue(rng_state())}};
  if (!is_automatic_) {
    all.state.emplace("unstepped", std::move(unstepped));
    all.state.emplace("gradients", unstepped_gradients());
  }
  if (const auto* stateful = dynamic_cast<const Stateful*>(task_))
    all.state.emplace("task", stateful->state_dict());
  if (const auto* stateful = dynamic_cast<const Stateful*>(train_loader_))
    all.state.emplace("loader", stateful->state_dict());
  StateDict rows;
  for (const auto& [key, logger] : loggers_by_key())
    if (const auto logged = logger->rows()) rows.emplace(key, *logged);
  all.state.emplace("loggers", std::move(rows));
  tell([&](Callback& c) { c.on_save_checkpoint(*this, all); });
  return all;
}

/// Those that have not failed, by what a checkpoint calls them.
std::map<std::string, std::shared_ptr<Logger>> Trainer::loggers_by_key() {
  const std::lock_guard lock(loggers_mutex_);
  std::map<std::string, std::shared_ptr<Logger>> keyed;
  for (const auto& logger : loggers_) keyed.emplace(unused_key(keyed, logger->name()), logger);
  return keyed;
}

/// Where a checkpoint says how many rows a logger had, what came after them goes; else what came after its
/// step.
void Trainer::resume_logs(const StateReader& state) {
  const auto rows = state.find("loggers");
  const auto keyed = loggers_by_key();
  each_logger([&](Logger& logger) {
    for (const auto& [key, known] : keyed) {
      if (known.get() != &logger) continue;
      const auto logged = rows ? rows->find(key) : std::nullopt;
      if (!logged) return logger.resume_from(progress_.steps);
      return logger.resume_from(progress_.steps, logged->to_count());
    }
  });
}

/// What changes the numbers of a run that goes on with another.
StateDict Trainer::setup_state() const {
  return {{kBatchesAnEpoch, std::to_string(batches_per_epoch_)},
          {"accumulate_grad_batches", options_.accumulate_grad_batches.to_string()},
          {"gradient_clip_val", c10::str(options_.gradient_clip_val)},
          {"gradient_clip_algorithm", options_.gradient_clip_algorithm},
          {"channels_last", options_.channels_last ? "true" : "false"}};
}

double Trainer::seconds_so_far() const {
  return seconds_before_ + std::chrono::duration<double>(Clock::now() - start_).count();
}

Checkpoint Trainer::read(const std::filesystem::path& path) {
  std::error_code error;
  // A checkpoint's own folder holds none.
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

void Trainer::load_model(Task& task, const Checkpoint& checkpoint, const std::string& from) {
  const std::string lost = narrowed(checkpoint.weights, task.module());
  load_weights(task.module(), checkpoint.weights, from);
  if (lost.empty()) return;
  TORCH_WARN("'", from, "' is of ", StateReader(checkpoint.state).at("precision").at("name").to_string(),
             ", and this run of ", precision_->name(), ": ", lost);
}

/// Master weights are more exact than the weights that they were rounded to, in whatever mode this run is.
void Trainer::load_master_weights(Task& task, const Checkpoint& checkpoint, const std::string& from) {
  const StateReader state = StateReader(checkpoint.state, from).at("precision").at("state");
  const std::map<std::string, at::Tensor> masters = master_weights_of(state);
  const at::NoGradGuard no_grad;
  for (auto& parameter : task.module().named_parameters()) {
    const auto master = masters.find(parameter.key());
    if (master == masters.end()) continue;
    if (master->second.sizes() != parameter.value().sizes())
      state.fail("has a master weight '" + parameter.key() +
                 "' with another shape than the weight; resume with the task that was saved");
    parameter.value().copy_(master->second);
  }
}

void Trainer::resume(const Checkpoint& checkpoint, const std::string& from) {
  const StateReader state(checkpoint.state, from);
  const StateReader optimizers = state.at("optimizers"), own = state.at("own_parameters"),
                    schedules = state.at("schedules"), learned = state.at("learned");
  if (optimizers.size() != optimizers_.size())
    optimizers.fail("holds " + std::to_string(optimizers.size()) + " optimizers, and the task has " +
                    std::to_string(optimizers_.size()) + "; resume with the task that was saved");
  const StateReader precision = state.at("precision");
  const bool is_same_mode = precision.at("name").to_string() == precision_->name();
  std::vector<std::string> lost;
  // Another program's checkpoint (tools/lightning_ckpt.py) need not have all that a run of ours has.
  const auto take = [&lost](const StateReader& from_state, const std::string& key, const std::string& what,
                            const auto& load) {
    if (const auto saved = from_state.find(key)) {
      load(*saved);
    } else {
      lost.push_back("it has nothing for " + what + ", which begins anew");
    }
  };
  const auto is_kept_elsewhere = parameters_kept_elsewhere();
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    const OptimizerConfig& config = optimizers_[i];
    load_optimizer_state(*config.optimizer, optimizers.at(i));
    if (own.at(i).size() > 0) load_own_parameters(*config.optimizer, is_kept_elsewhere, own.at(i));
    const std::string schedule = "the schedule of optimizer " + std::to_string(i);
    if (config.scheduler)
      take(schedules.at(i), "scheduler", schedule,
           [&](const StateReader& saved) { load_scheduler_state(*config.scheduler, saved); });
    if (config.plateau)
      take(schedules.at(i), "plateau", schedule,
           [&](const StateReader& saved) { load_scheduler_state(*config.plateau, saved); });
    if (schedules.at(i).size() > 0 && !config.scheduler && !config.plateau)
      lost.push_back("its schedule of optimizer " + std::to_string(i) + " is not in this run");
    epoch_steps_[i] = learned.at(i).to_bool() ? 1 : 0;
  }
  for (std::string& difference : precision_->load_state_dict(precision.at("state")))
    lost.push_back(std::move(difference));
  if (const auto kernels = state.find("cpu_kernels"))
    if (const auto refused = resume_cpu_kernels(kernels->to_string()); !refused.empty())
      lost.push_back("its CPU kernels " +
                     join_names({refused.begin(), refused.begin() + std::min<ptrdiff_t>(refused.size(), 3)}) +
                     (refused.size() > 3 ? " and " + std::to_string(refused.size() - 3) + " more" : "") +
                     " are not available here, and others' bits differ");
  const auto take_stateful = [&take](auto* object, const StateReader& from_state, const std::string& key,
                                     const std::string& what) {
    if (auto* stateful = dynamic_cast<Stateful*>(object))
      take(from_state, key, what, [&](const StateReader& saved) { stateful->load_state_dict(saved); });
  };
  const auto mine = by_key(options_.callbacks);
  for (const auto& [key, callback] : mine)
    take_stateful(callback, state.at("callbacks"), key, "the callback " + key);
  for (const auto& [key, saved] : state.at("callbacks").to_dict())
    if (!mine.contains(key)) lost.push_back("its callback " + key + " is not in this run");
  take_stateful(task_, state, "task", "the task");
  take_stateful(train_loader_, state, "loader", "the training loader");
  // All that can go wrong comes first: a run without progress has nothing to save.
  const FitProgress progress = progress_of(state.at("progress"));
  check_inside_epoch(state, progress);
  if (progress.steps != checkpoint.step)
    state.at("progress")
        .at("global_step")
        .fail(c10::str("is ", progress.steps, ", and the checkpoint's step is ", checkpoint.step));
  seconds_before_ = state.at("seconds").to_double(0, kMaxSeconds);
  training_metrics_.load_state_dict(state.at("training_metrics"));
  epoch_metrics_ = metrics_of(state.at("epoch_metrics"));
  validation_metrics_ = metrics_of(state.at("validation_metrics"));
  callback_metrics_ = metrics_of(state.at("callback_metrics"));
  if (!state.at("exact").to_bool())
    lost.emplace_back("it was saved inside a batch or an accumulation window, which is begun again");
  if (const auto setup = state.find("setup"))
    for (const auto& [name, now] : setup_state())
      if (const auto before = setup->find(name); before && before->to_string() != *now.get_if<std::string>())
        lost.push_back("its " + name + " was " + before->to_string() + " and is " +
                       *now.get_if<std::string>());
  if (const auto gradients = state.find("gradients"); gradients && !is_automatic_) {
    if (is_same_mode) {
      load_unstepped_gradients(*gradients);
      const StateReader unstepped = state.at("unstepped");
      for (size_t i = 0; i < optimizers_.size(); ++i) unstepped_[i] = unstepped.at(i).to_bool();
    } else if (gradients->size() > 0) {
      lost.emplace_back("gradients that no step has used are dropped");
    }
  }
  take(state, "rng", "the random numbers",
       [&](const StateReader&) { resume_rng_ = checkpoint.state.at("rng"); });
  progress_ = progress;
  skipped_steps_ = SkippedSteps(state.at("progress").at("skipped_steps").to_count());
  if (lost.empty()) return;
  std::string text;
  for (const std::string& what : lost) text += (text.empty() ? "" : "; ") + what;
  TORCH_WARN("resuming from '", from, "'",
             is_same_mode ? "" : " of " + precision.at("name").to_string() + " in " + precision_->name(),
             ": ", text);
}

void Trainer::resume_random_numbers() {
  if (!resume_rng_) return;
  const std::vector<std::string> missing = load_rng_state(StateReader(*resume_rng_, "rng"));
  resume_rng_.reset();  // now: should that fail, what is saved still has them
  if (!missing.empty()) {
    TORCH_WARN(
        "the random numbers of ", join_names(missing),
        " continue from where they are, since only the checkpoint or only this machine has that generator; "
        "what they decide differs from a run without interruption");
  }
}

}  // namespace mantissa
