#pragma once

// For the tests of strategies: a run of a model with one weight, and threads that stand for the processes of a run.

#include <chrono>
#include <condition_variable>
#include <gtest/gtest.h>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/trainer/strategy.h"
#include "mantissa/trainer/test_support_internal.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa::strategy_test {

struct Outcome {
  FitResult result;
  double weight = 0, scale = 0;
  int exchanges = 0;
};

/// `val`: validation batches; none if empty.
inline Outcome train(OneWeight& task, TrainerOptions options, std::vector<float> values,
                     std::vector<float> val_values = {}) {
  ListLoader loader = loader_of(std::move(values)), val = loader_of(std::move(val_values));
  options.device = "cpu";
  options.num_sanity_val_steps = 0;
  Trainer trainer(std::move(options));
  Outcome outcome;
  outcome.result = trainer.fit(task, loader, val.size() > 0 ? &val : nullptr);
  outcome.weight = task.weight();
  if (const at::Tensor scale = trainer.precision().loss_scale(); scale.defined())
    outcome.scale = scale.item<double>();
  return outcome;
}

inline Outcome train(TrainerOptions options, std::vector<float> values) {
  OneWeight task;
  return train(task, std::move(options), std::move(values));
}

/// The state that the threads share.
class Group {
 public:
  explicit Group(size_t size) : gradients(size), values(size) {}

  /// Returns when all threads are here.
  /// Errors: std::runtime_error in all threads if one does not come, so that a deadlock fails the test.
  void meet() {
    std::unique_lock lock(mutex_);
    const int64_t meeting = meetings_;
    if (++waiting_ == gradients.size()) {
      waiting_ = 0;
      ++meetings_;
      changed_.notify_all();
      return;
    }
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return meetings_ != meeting || broken_; });
    if (meetings_ != meeting) return;
    broken_ = true;
    changed_.notify_all();
    throw std::runtime_error("one process waits for another that does not come");
  }
  /// Returns when another thread waits in meet().
  void await_another() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return waiting_ > 0 || broken_; });
  }
  /// A thread has failed, and the others need not wait for it.
  void leave() {
    const std::lock_guard lock(mutex_);
    broken_ = true;
    changed_.notify_all();
  }

  std::vector<std::vector<at::Tensor>> gradients;  ///< by rank
  std::vector<at::Tensor> values;                  ///< by rank

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t waiting_ = 0;
  int64_t meetings_ = 0;
  bool broken_ = false;
};

/// Averages gradients over the threads of a group.
class OneOfAGroup final : public Strategy {
 public:
  OneOfAGroup(std::shared_ptr<Group> group, size_t rank) : group_(std::move(group)), rank_(rank) {}
  int64_t world_size() const override { return static_cast<int64_t>(group_->values.size()); }
  int64_t rank() const override { return static_cast<int64_t>(rank_); }
  void setup_optimizers(const std::vector<OptimizerConfig>& optimizers, Precision&) override {
    parameters_ = main_params(*optimizers.at(0).optimizer);
  }
  void pre_backward(const at::Tensor&) override { ++exchanges; }
  void post_backward() override {
    std::vector<at::Tensor>& own = group_->gradients[rank_];
    own.clear();
    for (const at::Tensor& parameter : parameters_) own.push_back(parameter.grad());
    group_->meet();
    std::vector<at::Tensor> means;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor sum = group_->gradients[0][i].clone();
      for (size_t rank = 1; rank < group_->gradients.size(); ++rank) sum += group_->gradients[rank][i];
      means.push_back(sum / world_size());
    }
    group_->meet();
    for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad().copy_(means[i]);
  }
  at::Tensor all_reduce(at::Tensor values, ReduceOp op) override {
    group_->values[rank_] = values;
    group_->meet();
    const at::Tensor all = torch::stack(group_->values);
    group_->meet();
    return op == ReduceOp::kSum ? all.sum(0) : all.amax(0);
  }
  Group& group() const { return *group_; }

  int exchanges = 0;

 private:
  std::shared_ptr<Group> group_;
  size_t rank_;
  std::vector<at::Tensor> parameters_;
};

/// Runs `fit` in two threads, each with its own strategy. An exception in one of them fails the test.
template <typename Fit>
std::vector<Outcome> in_two(const Fit& fit) {
  const auto group = std::make_shared<Group>(2);
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto strategy = std::make_shared<OneOfAGroup>(group, rank);
      try {
        outcomes[rank] = fit(rank, strategy);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "process " << rank << ": " << error.what();
        group->leave();
      }
      outcomes[rank].exchanges = strategy->exchanges;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

}  // namespace mantissa::strategy_test
