#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>

#include "mantissa/trace/history_internal.h"
#include "mantissa/trace/judge_internal.h"
#include "mantissa/trace/modules_internal.h"
#include "mantissa/trace/operation_internal.h"
#include "mantissa/trace/trace_nonfinite.h"

namespace mantissa::nonfinite_internal {

/// While an instance lives, this thread's computations are not observed, not differentiated and not under
/// autocast.
struct Unobserved {
  at::DisableRecordFunctionGuard no_records;
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

/// Observes every operation of a forward and backward pass, on this thread and on autograd's, from begin()
/// until it is destroyed. It keeps the history of non-finite values.
class Observer : public std::enable_shared_from_this<Observer> {
 public:
  explicit Observer(const torch::nn::Module& module) : modules_(module) {}
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  /// Errors: c10::Error while another observer is active.
  void begin();
  /// Announces the backward pass of `loss`, in which the results of nodes are checked as well.
  void begin_backward(const at::Tensor& loss);
  /// Non-finite values of the loss or of gradients. blame() returns the operation that produced them, if any.
  struct Bad {
    at::Tensor values;
    std::string what;  ///< "the loss"
  };
  std::optional<NonFiniteOrigin> blame(const std::vector<Bad>& bad);

  /// Restores parameters that the forward pass has written into (weight normalisation).
  void restore_parameters() const;

  void on_node(torch::autograd::Node& node, const torch::autograd::variable_list& outputs,
               const torch::autograd::variable_list& inputs);

 private:
  struct Results;

  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn);
  static void on_end(const at::RecordFunction& fn, at::ObserverContext* context);

  void start(Frame& frame);
  void keep_before(Frame& frame);
  void end(const Frame& frame, const std::vector<c10::IValue>& outputs);
  Results results_of(const Frame& frame, const std::vector<c10::IValue>& outputs);
  void report(const Frame& frame, NonFiniteOrigin origin, const std::vector<at::Tensor>& bad,
              const Finiteness& seen);
  void look_at_node(torch::autograd::Node& node, const torch::autograd::variable_list& outputs,
                    const torch::autograd::variable_list& inputs);
  void warn_about(const std::string& name, const std::exception& error);

  std::mutex mutex_;  ///< autograd's threads, one per GPU, report concurrently
  std::optional<at::CallbackHandle> callback_;
  Modules modules_;
  History history_;
  Underflows underflows_;
  Judge judge_{modules_, history_, underflows_};
  std::vector<std::pair<at::Tensor, at::Tensor>> written_parameters_;  ///< with their earlier values
  bool in_backward_ = false;
  bool warned_ = false;
};

}  // namespace mantissa::nonfinite_internal
