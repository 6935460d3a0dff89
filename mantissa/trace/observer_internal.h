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

/// While it lives, what this thread computes is neither observed nor differentiated nor autocast.
struct Unobserved {
  at::DisableRecordFunctionGuard no_records;
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

/// Sees every operation of a forward and backward pass on this thread and autograd's, from begin() to its
/// end, and keeps the history of what was not finite.
class Observer : public std::enable_shared_from_this<Observer> {
 public:
  explicit Observer(const torch::nn::Module& module) : modules_(module) {}
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  /// Errors: c10::Error while another one observes.
  void begin();
  /// The backward pass of `loss` is next: what its nodes return is looked at as well.
  void begin_backward(const at::Tensor& loss);
  /// The operation to blame for `values`, which are not finite: of the loss, or of gradients. Unset: none is.
  struct Bad {
    at::Tensor values;
    std::string what;  ///< "the loss"
  };
  std::optional<NonFiniteOrigin> blame(const std::vector<Bad>& bad);

  /// Parameters that the forward has written into (weight normalisation) become what they were.
  void restore_parameters() const;

  void on_node(torch::autograd::Node& node, const torch::autograd::variable_list& outputs,
               const torch::autograd::variable_list& inputs);

 private:
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn);
  static void on_end(const at::RecordFunction& fn, at::ObserverContext* context);

  void start(Frame& frame);
  void keep_before(Frame& frame);
  void end(const Frame& frame, const std::vector<c10::IValue>& outputs);
  void tell_of(const Frame& frame, NonFiniteOrigin origin, const std::vector<at::Tensor>& bad,
               const Finiteness& seen);
  void look_at_node(torch::autograd::Node& node, const torch::autograd::variable_list& outputs,
                    const torch::autograd::variable_list& inputs);
  void warn_of(const std::string& name, const std::exception& error);

  std::mutex mutex_;  ///< autograd's threads, one a GPU, report at the same time
  std::optional<at::CallbackHandle> callback_;
  Modules modules_;
  History history_;
  Underflows underflows_;
  Judge judge_{modules_, history_, underflows_};
  std::vector<std::pair<at::Tensor, at::Tensor>> written_parameters_;  ///< and what they were before
  bool in_backward_ = false;
  bool warned_ = false;
};

}  // namespace mantissa::nonfinite_internal
