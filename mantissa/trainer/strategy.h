#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/trainer/task.h"

namespace mantissa {

enum class ReduceOp { kSum, kMax };

/// Joins the processes that train one model (Lightning: Strategy). This base class stands for a single
/// process.
///
/// Order of a fit:  setup_module, setup_optimizers, then pre_backward and post_backward around the last
///                  backward pass before a step, and finally teardown. all_reduce is called at the start,
///                  between batches, for the metrics of an epoch or a validation, for each loss of LBFGS, and after
///                  each step of a mode whose processes need common scales, such as fp8-mixed.
/// A fit bases its decisions on results of all_reduce(), so all processes make the same calls in the same
/// order. Every process must therefore have the same callbacks in the same order, the same number
/// of training batches, and log the same metrics. Validation, test and prediction call only all_reduce and
/// teardown. Each process evaluates the batches of its own loader, and the metrics are means over all of
/// them.
///
/// Errors:  with several processes, a training_step() that returns no loss ends the run, because the others
///          would wait for its gradients.
/// Example: strategy_test.cpp, Strategy.TwoProcessesTrainAsOneWithBothBatches
class Strategy {
 public:
  virtual ~Strategy() = default;

  /// The number of processes that train together.
  virtual int64_t world_size() const { return 1; }
  /// The number of this process, from 0 to world_size() - 1.
  virtual int64_t rank() const { return 0; }
  /// Whether this process writes what all of them share: checkpoints, logs and the progress bar.
  bool is_global_zero() const { return rank() == 0; }

  /// Called when the model is converted, is on its device, and has the weights of the checkpoint from which a
  /// run resumes. Master weights are made from its weights afterwards. A strategy that reduces while the
  /// backward pass runs adds a GradientHook of kReduce (amp/gradient_hooks.h) to each parameter here. The hook
  /// is called with the tensor that holds the gradient, which may be a master weight.
  virtual void setup_module(torch::nn::Module& /*module*/) {}
  /// Called when the precision has given the optimizers the tensors to step, such as master weights.
  virtual void setup_optimizers(const std::vector<OptimizerConfig>& /*optimizers*/,
                                Precision& /*precision*/) {}

  /// Called before a backward pass whose gradients are averaged over the processes: the last one of an
  /// accumulation window, each evaluation by LBFGS, and each manual_backward(). `loss` is 0-dim, and scaled where
  /// the precision scales.
  virtual void pre_backward(const at::Tensor& /*loss*/) {}
  /// Called after that backward pass. Returns when the `.grad` of every tensor that the optimizers step holds
  /// the average over all processes, still scaled, so that an overflow in one process is an overflow in all.
  virtual void post_backward() {}

  /// Returns the sum or the maximum of each element over all processes: the same bits in every process.
  /// Shapes: `values` is 1-D, int64 or float64, and on the CPU; so is the result.
  virtual at::Tensor all_reduce(at::Tensor values, ReduceOp /*op*/) { return values; }

  /// Called at the end of a run, also after an exception.
  virtual void teardown() {}
};

}  // namespace mantissa
