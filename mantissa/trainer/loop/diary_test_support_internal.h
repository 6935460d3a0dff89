#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "mantissa/trainer/callback.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {

/// Records the hooks in order.
struct Diary final : Callback {
  void setup(Trainer&, Stage stage) override { note(stage == Stage::kFit ? "setup fit" : "setup"); }
  void on_fit_start(Trainer&, const FitPlan& plan) override {
    note("fit " + std::to_string(plan.batches_per_epoch));
  }
  void on_sanity_check_start(Trainer& trainer) override {
    note(trainer.is_sanity_checking() ? "sane?" : "?");
  }
  void on_sanity_check_end(Trainer&) override { note("sane"); }
  void on_train_start(Trainer&) override { note("train"); }
  void on_train_epoch_start(Trainer&, int64_t epoch) override { note("epoch " + std::to_string(epoch)); }
  void on_train_batch_start(Trainer&, const Batch& batch, int64_t) override {
    note("batch " + std::to_string(batch.data.item<int>()));
  }
  void on_before_zero_grad(Trainer&, torch::optim::Optimizer&) override { note("zero"); }
  void on_before_backward(Trainer&, const at::Tensor&) override { note("before"); }
  void on_after_backward(Trainer&) override { note("after"); }
  void on_before_optimizer_step(Trainer&, torch::optim::Optimizer&) override { note("step"); }
  void on_train_batch_end(Trainer& trainer, const TrainBatch& batch) override {
    note("end " + std::to_string(batch.global_step));
    if (stops_at == batch.global_step) trainer.stop("enough");
    if (throws_at == batch.global_step) throw std::runtime_error("callback failed");
  }
  void on_validation_start(Trainer&) override { note("val"); }
  void on_validation_batch_end(Trainer&, int64_t index) override { note("v" + std::to_string(index)); }
  void on_validation_end(Trainer&) override { note("val end"); }
  void on_test_start(Trainer&) override { note("test"); }
  void on_test_end(Trainer&) override { note("test end"); }
  void on_predict_batch_end(Trainer&, const c10::IValue& prediction, int64_t) override {
    note("predicted " + std::to_string(prediction.toTensor().item<int>()));
  }
  void on_epoch_end(Trainer&, int64_t epoch, int64_t, const Metrics&) override {
    note("epoch end " + std::to_string(epoch));
  }
  void on_train_end(Trainer&) override { note("train end"); }
  void on_fit_end(Trainer&, const FitResult&) override { note("fit end"); }
  void on_exception(Trainer&, const std::exception_ptr&) override {
    note("exception");
    if (throws_at >= 0) throw std::runtime_error("and again");
  }
  void teardown(Trainer&, Stage) override { note("teardown"); }

  void note(const std::string& line) { lines.push_back(line); }
  int64_t count(const std::string& line) const { return std::count(lines.begin(), lines.end(), line); }
  std::vector<std::string> lines;
  int64_t stops_at = -1, throws_at = -1;
};

}  // namespace mantissa
