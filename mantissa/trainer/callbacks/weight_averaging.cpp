#include "mantissa/trainer/callbacks/weight_averaging.h"

#include <map>
#include <string>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "mantissa/io/checkpoint.h"
#include "mantissa/io/weights.h"
#include "mantissa/trainer/trainer.h"
#include "mantissa/weights/named_parts.h"

namespace mantissa {
namespace {

constexpr const char* kTrained = "trained_weights";

}  // namespace

EMAWeightAveraging::EMAWeightAveraging(EMAWeightAveragingOptions options) : options_(options) {
  TORCH_CHECK_VALUE(options.ema.decay >= 0 && options.ema.decay < 1,
                    "EMAWeightAveraging: the decay must be in [0, 1); got ", options.ema.decay);
  TORCH_CHECK_VALUE(
      options.update_every_n_steps >= 1 && options.update_starting_at_step >= 1,
      "EMAWeightAveraging: update_every_n_steps and update_starting_at_step are counts from 1; got ",
      options.update_every_n_steps, " and ", options.update_starting_at_step);
}

void EMAWeightAveraging::on_fit_start(Trainer& trainer, const FitPlan& /*plan*/) {
  for (const auto& callback : trainer.options().callbacks)
    TORCH_CHECK_VALUE(
        callback.get() == this || !dynamic_cast<const EMAWeightAveraging*>(callback.get()),
        "EMAWeightAveraging: the Trainer has two of these callbacks, and only one can replace the weights by "
        "its average; leave one out, or average with Ema in a callback of your own");
  ema_.emplace(*trainer.module(), options_.ema);
  fitting_ = true;
}

void EMAWeightAveraging::on_train_batch_end(Trainer& /*trainer*/, const TrainBatch& batch) {
  const int64_t since = batch.global_step - options_.update_starting_at_step;
  const bool is_due = batch.stepped && since >= 0 && since % options_.update_every_n_steps == 0;
  if (is_due && !batch.step.skipped()) ema_->update();
}

void EMAWeightAveraging::on_validation_start(Trainer& /*trainer*/) {
  if (fitting_) averaged_ = ema_->average_weights();
}

void EMAWeightAveraging::on_validation_end(Trainer& /*trainer*/) { averaged_.reset(); }

void EMAWeightAveraging::on_fit_end(Trainer& /*trainer*/, const FitResult& /*result*/) {
  ema_->copy_to_module();
  fitting_ = false;
}

void EMAWeightAveraging::on_save_checkpoint(Trainer& /*trainer*/, Checkpoint& checkpoint) {
  auto* state = checkpoint.state.at("callbacks").get_if<StateDict>();
  if (!ema_ || ema_->num_updates() == 0 || !state->contains(state_key())) return;
  // During a validation the model has the averaged weights.
  const bool is_averaged = averaged_.use_count() > 0;  // a Scope points to nothing
  averaged_.reset();
  StateDict trained;
  for (auto& [name, average] : ema_->named_averages()) {
    at::Tensor& weight = checkpoint.weights.at(name);
    trained.emplace(name, is_averaged ? weight.detach().clone() : weight.detach());
    weight = std::move(average);
  }
  state->at(state_key()).get_if<StateDict>()->insert_or_assign(kTrained, std::move(trained));
  if (is_averaged) averaged_ = ema_->average_weights();
}

// This comes before the optimizers are set up, so that master weights are made from the trained weights.
void EMAWeightAveraging::on_load_checkpoint(Trainer& trainer, const Checkpoint& checkpoint) {
  const auto mine = StateReader(checkpoint.state, "the checkpoint").at("callbacks").find(state_key());
  const auto trained = mine ? mine->find(kTrained) : std::nullopt;
  if (!trained) return;
  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, value] : trained->to_dict()) weights.emplace(name, trained->at(name).to_tensor());
  load_weights(plain_weights(named_weights(*trainer.module())), weights, trained->path());
}

StateDict EMAWeightAveraging::state_dict() const { return ema_ ? ema_->state_dict() : StateDict(); }

void EMAWeightAveraging::load_state_dict(const StateReader& state) {
  TORCH_CHECK(ema_,
              "EMAWeightAveraging::load_state_dict: there is no average yet; call it after on_fit_start()");
  if (state.size() > 0) ema_->load_state_dict(state);
}

// The model keeps the trained weights: training could not continue from a failed run's average.
void EMAWeightAveraging::on_exception(Trainer& /*trainer*/, const std::exception_ptr& /*exception*/) {
  averaged_.reset();
  fitting_ = false;
}

}  // namespace mantissa
