#include "mantissa/amp/gradient_hooks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace mantissa {

using torch::autograd::PostAccumulateGradHook;

struct GradientHook::Registered {
  at::Tensor parameter;
  GradientHookOrder order;
  Call call;
};

namespace {

/// Takes a parameter's only slot for a hook. It calls the hook that was there before, and then ours.
struct Shared final : PostAccumulateGradHook {
  void operator()(const at::Tensor& parameter) override {
    if (before) (*before)(parameter);
    at::Tensor holder = parameter;
    for (const auto& [order, call] : calls)
      if (order != GradientHookOrder::kMove || holder.is_same(parameter)) (*call)(holder);
  }
  std::unique_ptr<PostAccumulateGradHook> before;
  /// Sorted by order. Among equal orders the newest comes first: a hook that moves a gradient takes it away from
  /// the hooks that were added before.
  std::vector<std::pair<GradientHookOrder, const GradientHook::Call*>> calls;
};

std::unique_ptr<PostAccumulateGradHook>& hook_slot(const at::Tensor& parameter) {
  return torch::autograd::impl::post_acc_grad_hooks(parameter);
}

Shared* shared_of(const at::Tensor& parameter) { return dynamic_cast<Shared*>(hook_slot(parameter).get()); }

}  // namespace

GradientHook::GradientHook(const at::Tensor& parameter, GradientHookOrder order, Call call)
    : registered_(std::make_shared<Registered>(Registered{parameter, order, std::move(call)})) {
  TORCH_CHECK_VALUE(parameter.defined() && parameter.is_leaf(),
                    "GradientHook: gradients are accumulated into leaves, such as a module's parameters; "
                    "this tensor was computed");
  Shared* shared = shared_of(parameter);
  if (!shared) {
    auto made = std::make_unique<Shared>();
    shared = made.get();
    std::unique_ptr<PostAccumulateGradHook>& place = hook_slot(parameter);
    made->before = std::move(place);
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::move(made));
  }
  const auto behind = std::find_if(shared->calls.begin(), shared->calls.end(),
                                   [&](const auto& other) { return other.first >= order; });
  shared->calls.insert(behind, {order, &registered_->call});
}

GradientHook::~GradientHook() { remove(); }

GradientHook& GradientHook::operator=(GradientHook&& other) noexcept {
  if (this != &other) {
    remove();
    registered_ = std::move(other.registered_);
  }
  return *this;
}

void GradientHook::remove() {
  if (!registered_) return;
  const auto registered = std::exchange(registered_, nullptr);
  // If somebody else has set a hook since, ours is already gone.
  Shared* const shared = shared_of(registered->parameter);
  if (!shared) return;
  std::erase_if(shared->calls, [&](const auto& each) { return each.second == &registered->call; });
  if (!shared->calls.empty()) return;
  std::unique_ptr<PostAccumulateGradHook> before = std::move(shared->before);
  torch::autograd::impl::set_post_acc_grad_hooks(registered->parameter, std::move(before));
}

}  // namespace mantissa
