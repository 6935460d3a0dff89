#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/trainer/task.h"

namespace mantissa {

/// Joins the processes that train one model (Lightning: Strategy). This base class is one process alone.
///
/// Order of a fit:  setup_module, setup_optimizers, then for each backward pass that a step follows
///                  pre_backward and post_backward, reduce_max between batches, teardown.
/// Every process calls the same functions in the same order, because a fit decides what comes next only after
/// reduce_max(). So every process has the same callbacks in the same order. Validation, test and prediction call nothing but teardown: each process evaluates what its
/// loader gives.
/// Errors:  with several processes, a training_step() that returns no loss ends the run: the others would wait
///          for its gradients.
/// Example: strategy_test.cpp, Strategy.TwoProcessesTrainAsOneWithBothBatches
class Strategy {
 public:
  virtual ~Strategy() = default;

  /// How many processes train together.
  virtual int64_t world_size() const { return 1; }

  /// The model is converted, on its device, and has the weights of the checkpoint from which a run resumes.
  /// Master weights are made from its weights afterwards.
  virtual void setup_module(torch::nn::Module& /*module*/) {}
  /// The precision has given the optimizers what they step, for example master weights.
  virtual void setup_optimizers(const std::vector<OptimizerConfig>& /*optimizers*/,
                                Precision& /*precision*/) {}

  /// Before a backward pass whose gradients are summed over the processes: the last one of an accumulation
  /// window, each one of LBFGS, and each manual_backward(). `loss`: 0-dim, scaled where the precision scales.
  virtual void pre_backward(const at::Tensor& /*loss*/) {}
  /// After it: returns when `.grad` holds the mean over all processes, still scaled, so that an overflow in one
  /// process is an overflow in all.
  virtual void post_backward() {}

  /// The largest of each flag over all processes. Called between two batches.
  virtual std::vector<int64_t> reduce_max(std::vector<int64_t> flags) { return flags; }

  /// Ends a run, also after an exception.
  virtual void teardown() {}
};

}  // namespace mantissa
