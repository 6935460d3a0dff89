// Runs fits as described by a job file and writes the events in their order. tests/parity/test_loops.py
// compares them with Lightning's.
//
//   loop_runner JOBS.json OUTPUT.json
//
// Job:   {"train": batches, "val": batches or 0 for no loader, "options": TrainerOptions by name (an integer is a
//        count of batches, a number with a decimal point a fraction; accumulate_grad_batches may be
//        [[epoch, batches], ...]), "stop_at": batches after which the user calls stop(), or null}.
// Trace: "sI", "tI", "vI": batch I of the sanity validation, of training, of a validation; "step": an
//        optimizer step; "E": the end of an epoch. For a fit that throws c10::ValueError the
//        trace is ["error"].
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>

#include <nlohmann/json.hpp>

#include "mantissa/optim/sgd.h"
#include "mantissa/trainer/trainer.h"
#include "ones.h"

namespace {

using Json = nlohmann::json;
using Trace = std::vector<std::string>;

std::string event(const char* kind, int64_t index) {
  std::string text = kind;
  return text += std::to_string(index);  // GCC 12 warns about a memcpy in kind + std::to_string(index)
}

class Traced final : public mantissa::Task {
 public:
  explicit Traced(Trace& trace) : trace_(trace) {}
  torch::nn::Module& module() override { return *net_; }
  std::vector<mantissa::OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<mantissa::SGD>(net_->parameters(), mantissa::SGDOptions(0.1))}};
  }
  at::Tensor training_step(const mantissa::Batch& batch, int64_t index) override {
    trace_.push_back(event("t", index));
    return net_->forward(batch.data).sum();
  }
  void validation_step(const mantissa::Batch&, int64_t index) override {
    trace_.push_back(event(trainer().is_sanity_checking() ? "s" : "v", index));
  }

 private:
  Trace& trace_;
  torch::nn::Linear net_{1, 1};
};

class TraceCallback final : public mantissa::Callback {
 public:
  TraceCallback(Trace& trace, std::optional<int64_t> stop_at) : trace_(trace), stop_at_(stop_at) {}
  void on_train_batch_end(mantissa::Trainer& trainer, const mantissa::TrainBatch& batch) override {
    if (batch.stepped) trace_.emplace_back("step");
    if (++batches_ == stop_at_) trainer.stop("the job says so");
  }
  void on_epoch_end(mantissa::Trainer&, int64_t, int64_t, const mantissa::Metrics&) override {
    trace_.emplace_back("E");
  }

 private:
  Trace& trace_;
  std::optional<int64_t> stop_at_;
  int64_t batches_ = 0;
};

mantissa::BatchLimit limit(const Json& json) {
  return json.is_number_float() ? mantissa::BatchLimit(json.get<double>())
                                : mantissa::BatchLimit(json.get<int64_t>());
}

mantissa::AccumulationSchedule schedule(const Json& json) {
  if (json.is_number()) return json.get<int64_t>();
  std::map<int64_t, int64_t> from_epoch;
  for (const Json& entry : json) from_epoch[entry.at(0)] = entry.at(1);
  return from_epoch;
}

mantissa::TrainerOptions options_of(const Json& json) {
  mantissa::TrainerOptions o{.device = "cpu"};
  for (const auto& [name, value] : json.items()) {
    if (name == "max_epochs") o.max_epochs = value;
    if (name == "max_steps") o.max_steps = value;
    if (name == "min_epochs") o.min_epochs = value;
    if (name == "min_steps") o.min_steps = value;
    if (name == "limit_train_batches") o.limit_train_batches = limit(value);
    if (name == "limit_val_batches") o.limit_val_batches = limit(value);
    if (name == "overfit_batches") o.overfit_batches = limit(value);
    if (name == "val_check_interval") o.val_check_interval = limit(value);
    if (name == "num_sanity_val_steps") o.num_sanity_val_steps = value;
    if (name == "accumulate_grad_batches") o.accumulate_grad_batches = schedule(value);
    if (name == "check_val_every_n_epoch")
      o.check_val_every_n_epoch = value.is_null() ? std::nullopt : std::optional(value.get<int64_t>());
  }
  return o;
}

Trace run(const Json& job) {
  Trace trace;
  Traced task(trace);
  Ones train(job.at("train")), val(job.at("val"));
  const Json& stop_at = job.at("stop_at");
  try {
    mantissa::TrainerOptions options = options_of(job.at("options"));
    options.callbacks.push_back(std::make_shared<TraceCallback>(
        trace, stop_at.is_null() ? std::nullopt : std::optional(stop_at.get<int64_t>())));
    mantissa::Trainer(std::move(options)).fit(task, train, val.size() > 0 ? &val : nullptr);
  } catch (const c10::ValueError&) {
    return {"error"};
  }
  return trace;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: loop_runner JOBS.json OUTPUT.json\n");
    return 2;
  }
  Json traces = Json::array();
  for (const Json& job : Json::parse(std::ifstream(argv[1]))) traces.push_back(run(job));
  std::ofstream(argv[2]) << traces;
}
