#include "mantissa/amp/step_result.h"

#include <optional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

namespace mantissa {
namespace {

/// When this many flags are unread, they are summed on the device, so that a run that never asks for the
/// count does not keep a flag for each step.
constexpr size_t kMaxUnread = 1024;

/// Returns the value of a float32 flag in host memory, and nothing for any other flag.
std::optional<bool> host_value(const at::Tensor& flag) {
  if (!flag.is_cpu() || flag.scalar_type() != at::kFloat) return std::nullopt;
  return *flag.const_data_ptr<float>() != 0;
}

}  // namespace

std::string_view to_string(SkipCause cause) {
  switch (cause) {
    case SkipCause::kNone:
      return "not skipped";
    case SkipCause::kNonFiniteGradients:
      return "non-finite gradients";
    case SkipCause::kNoGradients:
      return "no gradients";
  }
  return "unknown";
}

struct StepResult::Pending {
  at::Tensor found_inf;  ///< undefined once it has been read
  std::function<std::string()> first_nonfinite;
  SkipCause cause = SkipCause::kNone;
  std::string first_nonfinite_parameter = {};
};

StepResult::StepResult(SkipCause cause, std::string first_nonfinite_parameter)
    : cause_(cause), first_nonfinite_parameter_(std::move(first_nonfinite_parameter)) {}

StepResult::StepResult(at::Tensor found_inf, std::function<std::string()> first_nonfinite) {
  TORCH_CHECK_VALUE(found_inf.defined() && found_inf.numel() == 1,
                    "StepResult: found_inf must be a tensor with one element");
  const std::optional<bool> skipped = host_value(found_inf);
  if (!skipped) {
    pending_ = std::make_shared<Pending>(Pending{std::move(found_inf), std::move(first_nonfinite)});
  } else if (*skipped) {  // a flag in host memory can be read without waiting
    cause_ = SkipCause::kNonFiniteGradients;
    if (first_nonfinite) first_nonfinite_parameter_ = first_nonfinite();
  }
}

const StepResult::Pending* StepResult::read() const {
  if (!pending_ || !pending_->found_inf.defined()) return pending_.get();
  if (std::exchange(pending_->found_inf, at::Tensor()).item<double>() != 0) {
    pending_->cause = SkipCause::kNonFiniteGradients;
    if (pending_->first_nonfinite) pending_->first_nonfinite_parameter = pending_->first_nonfinite();
  }
  pending_->first_nonfinite = nullptr;
  return pending_.get();
}

SkipCause StepResult::cause() const {
  const Pending* pending = read();
  return pending ? pending->cause : cause_;
}

const std::string& StepResult::first_nonfinite_parameter() const {
  const Pending* pending = read();
  return pending ? pending->first_nonfinite_parameter : first_nonfinite_parameter_;
}

bool StepResult::is_known() const { return !pending_ || !pending_->found_inf.defined(); }

at::Tensor StepResult::found_inf() const { return pending_ ? pending_->found_inf : at::Tensor(); }

void SkippedSteps::add(const StepResult& step) {
  if (step.is_known()) {
    count_ += step.skipped();
    return;
  }
  unread_.push_back(step.found_inf());
  if (unread_.size() >= kMaxUnread) sum_up();
}

void SkippedSteps::sum_up() const {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& flag : unread_) {
    const at::Tensor skipped = (flag != 0).to(at::kDouble);
    sum_ = sum_.defined() ? sum_ + skipped.to(sum_.device()) : skipped;
  }
  unread_.clear();
}

int64_t SkippedSteps::count() const {
  sum_up();
  if (sum_.defined()) count_ += static_cast<int64_t>(sum_.item<double>());
  sum_.reset();
  return count_;
}

at::Tensor SkippedSteps::count_on_device() const {
  const at::NoGradGuard no_grad;
  sum_up();
  const auto known = static_cast<double>(count_);
  return sum_.defined() ? sum_ + known : at::full({}, known, at::kDouble);
}

}  // namespace mantissa
