// The cost of the Trainer per step: an mlp on digits with batches of 32, compared with the same loop written
// by hand with libtorch. Both train from the same weights in turn, an epoch each, and the weights must be
// equal bit for bit at the end. Prints one line of JSON for benchmarks/trainer_cost.py:
//
//   trainer_cost_bench ROUNDS
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "mantissa/data/digits.h"
#include "mantissa/data/loader.h"
#include "mantissa/models/mlp.h"
#include "mantissa/trainer/classification_task.h"
#include "mantissa/trainer/loggers/csv_logger.h"
#include "mantissa/trainer/trainer.h"

namespace mantissa {
namespace {

using Clock = std::chrono::steady_clock;

/// Batches in memory, so that reading them costs both loops the same: next to nothing.
class Batches final : public Loader {
 public:
  explicit Batches(std::vector<Batch> batches) : batches_(std::move(batches)) {}
  void set_epoch(int64_t) override { next_ = 0; }
  std::optional<Batch> next() override {
    return next_ < batches_.size() ? std::optional(batches_[next_++]) : std::nullopt;
  }
  int64_t size() const override { return static_cast<int64_t>(batches_.size()); }
  const std::vector<Batch>& all() const { return batches_; }

 private:
  std::vector<Batch> batches_;
  size_t next_ = 0;
};

Batches digits() {
  DataLoader loader(load_digits(), {.batch_size = 32, .drop_last = true});
  std::vector<Batch> batches;
  // Ten epochs in one, so that the cost of an epoch is spread as in a longer run.
  for (int epoch = 0; epoch < 10; ++epoch) {
    loader.set_epoch(epoch);
    while (auto batch = loader.next()) batches.push_back(*std::move(batch));
  }
  return Batches(std::move(batches));
}

std::shared_ptr<MlpImpl> model() {
  torch::manual_seed(1);
  return std::make_shared<MlpImpl>(MlpOptions{.in_features = 64, .classes = 10});
}

std::shared_ptr<torch::optim::SGD> optimizer(const torch::nn::Module& module) {
  return std::make_shared<torch::optim::SGD>(module.parameters(),
                                             torch::optim::SGDOptions(0.01).momentum(0.9));
}

class Loop {
 public:
  virtual ~Loop() = default;
  virtual void epoch(Batches& batches) = 0;
  double microseconds_a_step(Batches& batches) {
    const auto start = Clock::now();
    epoch(batches);
    const std::chrono::duration<double, std::micro> time = Clock::now() - start;
    return time.count() / static_cast<double>(batches.size());
  }
  const std::shared_ptr<MlpImpl> net = model();
};

class ByHand final : public Loop {
 public:
  void epoch(Batches& batches) override {
    for (const Batch& batch : batches.all()) {
      optimizer_->zero_grad();
      at::cross_entropy_loss(net->forward(batch.data), batch.target).backward();
      optimizer_->step();
    }
  }

 private:
  std::shared_ptr<torch::optim::SGD> optimizer_ = optimizer(*net);
};

class ByTrainer final : public Loop {
 public:
  explicit ByTrainer(std::vector<std::shared_ptr<Logger>> loggers)
      : trainer_({.precision = "32-true", .device = "cpu", .loggers = std::move(loggers)}) {}
  void epoch(Batches& batches) override { trainer_.fit(task_, batches); }

 private:
  std::shared_ptr<torch::optim::SGD> optimizer_ = optimizer(*net);
  ClassificationTask task_{net, [this](const at::Tensor& x) { return net->forward(x); },
                           [this](torch::nn::Module&) { return OptimizerConfig{optimizer_}; }};
  Trainer trainer_;
};

void run(int rounds) {
  at::set_num_threads(1);
  Batches batches = digits();
  std::string folder = (std::filesystem::temp_directory_path() / "mantissa-bench-XXXXXX").string();
  TORCH_CHECK(mkdtemp(folder.data()), "cannot make a folder for the logger");
  {
    ByHand hand;
    ByTrainer trainer({}), logged({std::make_shared<CSVLogger>(folder)});
    const std::vector<Loop*> loops{&hand, &trainer, &logged};
    std::vector<std::string> times(loops.size());
    for (int round = -1; round < rounds; ++round) {  // the first one is the warm-up
      for (size_t i = 0; i < loops.size(); ++i) {
        const double time = loops[i]->microseconds_a_step(batches);
        if (round >= 0) times[i] += fmt::format("{}{}", times[i].empty() ? "" : ", ", time);
      }
    }
    for (const Loop* loop : loops) {
      const auto expected = hand.net->parameters(), got = loop->net->parameters();
      for (size_t i = 0; i < expected.size(); ++i)
        TORCH_CHECK(expected[i].equal(got[i]), "the loops have trained different weights; no time counts");
    }
    fmt::print(R"({{"hand": [{}], "trainer": [{}], "trainer_csv": [{}]}})"
               "\n",
               times[0], times[1], times[2]);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace mantissa

int main(int count, char** words) {
  if (count != 2) return fmt::print(stderr, "usage: trainer_cost_bench ROUNDS\n"), 2;
  mantissa::run(std::atoi(words[1]));
}
