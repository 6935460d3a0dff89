// Runs callbacks as described by a job file. tests/parity/test_callbacks.py compares them with Lightning's.
//
//   callback_runner JOB.json OUTPUT.json
//
// Job: "early_stopping": runs of {"values": one per epoch, "options": EarlyStoppingOptions by name}; each
//      gives {"epochs", "stopped_epoch", "reason", "wait_count", "best_score"}.
//      "optimizers": lists of {"class": "SGD" | "AdamW", "groups": n, "schedule": null | "step" | "epoch"};
//      each gives the rows that LearningRateMonitor makes in 2 epochs of 2 batches, {step: {name: value}}.
//      Numbers that JSON lacks are the strings "nan", "inf", "-inf".
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <nlohmann/json.hpp>

#include "mantissa/optim/adamw.h"
#include "mantissa/optim/sgd.h"
#include "mantissa/trainer/callbacks/early_stopping.h"
#include "mantissa/trainer/callbacks/learning_rate_monitor.h"
#include "mantissa/trainer/trainer.h"
#include "ones.h"

namespace {

using Json = nlohmann::json;

double number(const Json& json) {
  return json.is_string() ? std::stod(json.get<std::string>()) : json.get<double>();
}
Json json_of(double value) { return std::isfinite(value) ? Json(value) : Json(std::to_string(value)); }

/// Logs one value per epoch as "m".
class Logs : public mantissa::Task {
 public:
  explicit Logs(std::vector<double> values) : values_(std::move(values)) {}
  torch::nn::Module& module() override { return *net_; }
  std::vector<mantissa::OptimizerConfig> configure_optimizers() override {
    return {{std::make_shared<mantissa::SGD>(net_->parameters(), mantissa::SGDOptions(0.1))}};
  }
  at::Tensor training_step(const mantissa::Batch& batch, int64_t) override {
    return net_->forward(batch.data).sum();
  }
  void validation_step(const mantissa::Batch&, int64_t) override {
    log("m", values_.at(static_cast<size_t>(trainer().progress().epoch)));
  }

 protected:
  torch::nn::Linear net_{1, 1};

 private:
  std::vector<double> values_;
};

Json stop_early(const Json& job) {
  mantissa::EarlyStoppingOptions options{.monitor = "m"};
  const Json& given = job.at("options");
  if (given.contains("min_delta")) options.min_delta = given["min_delta"];
  if (given.contains("patience")) options.patience = given["patience"];
  if (given.contains("mode")) options.mode = given["mode"];
  if (given.contains("check_finite")) options.check_finite = given["check_finite"];
  if (given.contains("stopping_threshold")) options.stopping_threshold = given["stopping_threshold"];
  if (given.contains("divergence_threshold")) options.divergence_threshold = given["divergence_threshold"];
  std::vector<double> values;
  for (const Json& value : job.at("values")) values.push_back(number(value));
  const auto epochs = static_cast<int64_t>(values.size());
  Logs task(std::move(values));
  Ones train(1), val(1);
  const auto stopping = std::make_shared<mantissa::EarlyStopping>(options);
  const auto result = mantissa::Trainer({.device = "cpu", .max_epochs = epochs, .callbacks = {stopping}})
                          .fit(task, train, &val);
  return {{"epochs", result.epochs},
          {"stopped_epoch", stopping->stopped_epoch().value_or(0)},
          {"reason", static_cast<int>(stopping->stopping_reason())},
          {"wait_count", stopping->wait_count()},
          {"best_score", json_of(stopping->best_score())}};
}

/// Python's StepLR(optimizer, 1, 0.5), because libtorch's is one step late.
class Halves final : public torch::optim::LRScheduler {
 public:
  using LRScheduler::LRScheduler;

 private:
  std::vector<double> get_lrs() override {
    std::vector<double> rates = get_current_lrs();
    for (double& rate : rates) rate /= 2;
    return rates;
  }
};

/// Steps the optimizers of a job in each batch. The rates of their groups are 1, 2, ..., and schedules halve
/// them.
class Several final : public Logs {
 public:
  explicit Several(Json job) : Logs({}), job_(std::move(job)) {}
  bool automatic_optimization() const override { return false; }
  std::vector<mantissa::OptimizerConfig> configure_optimizers() override {
    std::vector<mantissa::OptimizerConfig> configs;
    for (const Json& optimizer : job_) {
      std::vector<torch::optim::OptimizerParamGroup> groups;
      for (int i = 0; i < optimizer.at("groups").get<int>(); ++i) {
        std::vector<at::Tensor> parameters{at::ones({1}).requires_grad_()};
        if (optimizer.at("class") == "SGD") {
          groups.emplace_back(
              parameters, std::make_unique<mantissa::SGDOptions>(mantissa::SGDOptions(i + 1).momentum(0.5)));
        } else {
          groups.emplace_back(parameters, std::make_unique<mantissa::AdamWOptions>(i + 1));
        }
      }
      mantissa::OptimizerConfig config;
      if (optimizer.at("class") == "SGD") {
        config.optimizer = std::make_shared<mantissa::SGD>(groups, mantissa::SGDOptions(1));
      } else {
        config.optimizer = std::make_shared<mantissa::AdamW>(groups, mantissa::AdamWOptions(1));
      }
      const Json& schedule = optimizer.at("schedule");
      if (!schedule.is_null()) config.scheduler = std::make_shared<Halves>(*config.optimizer);
      if (schedule == "step") config.interval = mantissa::OptimizerConfig::Interval::kStep;
      configs.push_back(std::move(config));
    }
    return configs;
  }
  at::Tensor training_step(const mantissa::Batch&, int64_t batch_index) override {
    for (size_t i = 0; i < job_.size(); ++i) {
      optimizers(i).step();
      const bool is_due =
          job_[i].at("schedule") == "step" || (job_[i].at("schedule") == "epoch" && batch_index == 1);
      if (is_due) optimizers(i).scheduler()->step();
    }
    return {};
  }

 private:
  Json job_;
};

class Rows final : public mantissa::Logger {
 public:
  std::string name() const override { return "rows"; }
  void log_metrics(mantissa::MetricValues metrics, int64_t step) override {
    for (const auto& [name, value] : metrics)
      if (name.starts_with("lr-")) rows[std::to_string(step)][name] = value.read();
  }
  void log_hyperparams(const mantissa::Hyperparameters&) override {}
  Json rows = Json::object();
};

Json learning_rates(const Json& job) {
  const auto rows = std::make_shared<Rows>();
  Several task(job);
  Ones train(2);
  mantissa::Trainer(
      {.device = "cpu",
       .max_epochs = 2,
       .callbacks = {std::make_shared<mantissa::LearningRateMonitor>(
           mantissa::LearningRateMonitorOptions{.log_momentum = true, .log_weight_decay = true})},
       .loggers = {rows},
       .log_every_n_steps = 1})
      .fit(task, train);
  return rows->rows;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const Json job = Json::parse(std::ifstream(argv[1]));
    Json result{{"early_stopping", Json::array()}, {"optimizers", Json::array()}};
    for (const Json& run : job.at("early_stopping")) result["early_stopping"].push_back(stop_early(run));
    for (const Json& run : job.at("optimizers")) result["optimizers"].push_back(learning_rates(run));
    std::ofstream(argv[2]) << result;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "callback_runner: %s\n", error.what());
    return 1;
  }
  return 0;
}
