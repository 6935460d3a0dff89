#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/trainer/task.h"

namespace mantissa {

/// Joins the processes that train one model (Lightning: Strategy). This base class stands for a single
/// process.
///
/// Order of a fit:  setup_module, setup_optimizers, then pre_backward and post_backward around each backward
///                  pass that a step follows, reduce_max between batches, teardown.
/// Every process calls the same functions in the same order, because a fit decides what comes next only after
/// reduce_max(). Every process must therefore have the same callbacks in the same order. Validation, test and
/// prediction call only teardown: each process evaluates the batches of its own loader.
///
/// Errors:  with several processes, a training_step() that returns no loss ends the run, because the others
///          would wait for its gradients.
/// Example: strategy_test.cpp, Strategy.TwoProcessesTrainAsOneWithBothBatches
class Strategy {
 public:
  virtual ~Strategy() = default;

  /// The number of processes that train together.
  virtual int64_t world_size() const { return 1; }

  /// Called when the model is converted, is on its device, and has the weights of the checkpoint from which a
  /// run resumes. Master weights are made from its weights afterwards.
  virtual void setup_module(torch::nn::Module& /*module*/) {}
  /// Called when the precision has given the optimizers the tensors to step, such as master weights.
  virtual void setup_optimizers(const std::vector<OptimizerConfig>& /*optimizers*/,
                                Precision& /*precision*/) {}

  /// Called before a backward pass whose gradients are summed over the processes: the last one of an
  /// accumulation window, each one of LBFGS, and each manual_backward(). `loss` is 0-dim, and scaled where
  /// the precision scales.
  virtual void pre_backward(const at::Tensor& /*loss*/) {}
  /// Called after that backward pass. Returns when `.grad` holds the mean over all processes, still scaled,
  /// so that an overflow in one process is an overflow in all.
  virtual void post_backward() {}

  /// Returns the maximum of each flag over all processes. Called between two batches.
  virtual std::vector<int64_t> reduce_max(std::vector<int64_t> flags) { return flags; }

  /// Called at the end of a run, also after an exception.
  virtual void teardown() {}
};

}  // namespace mantissa
