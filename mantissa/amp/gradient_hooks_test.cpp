#include "mantissa/amp/gradient_hooks.h"

#include <gtest/gtest.h>
#include <optional>
#include <string>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/torch.h>

namespace mantissa::gradient_hooks_test {
namespace {

at::Tensor weight() { return torch::ones({2}).set_requires_grad(true); }

TEST(GradientHook, RunsInOrderBesideOthers) {
  const at::Tensor w = weight();
  std::string calls;
  struct Own final : torch::autograd::PostAccumulateGradHook {
    explicit Own(std::string* to) : calls(to) {}
    void operator()(const at::Tensor& /*parameter*/) override { *calls += "own "; }
    std::string* calls;
  };
  torch::autograd::impl::set_post_acc_grad_hooks(w, std::make_unique<Own>(&calls));
  const auto note = [&](const char* name) { return [&, name](const at::Tensor&) { calls += name; }; };
  std::optional<GradientHook> reduce(std::in_place, w, GradientHookOrder::kReduce, note("reduce "));
  std::optional<GradientHook> move(std::in_place, w, GradientHookOrder::kMove, note("move "));
  std::optional<GradientHook> later(std::in_place, w, GradientHookOrder::kMove, note("later "));
  const auto run = [&] {
    calls.clear();
    (w * w).sum().backward();
    return calls;
  };
  EXPECT_EQ(run(), "own later move reduce ");
  move.reset();
  EXPECT_EQ(run(), "own later reduce ");
  later.reset();
  reduce.reset();
  EXPECT_EQ(run(), "own ") << "the one that was there before stays behind";
}

TEST(GradientHook, SeesTheAccumulatedGradientAndMayTakeIt) {
  const at::Tensor w = weight();
  at::Tensor taken;
  const GradientHook hook(w, GradientHookOrder::kMove, [&](const at::Tensor& parameter) {
    taken = parameter.grad();
    parameter.mutable_grad() = at::Tensor();
  });
  (3 * w).sum().backward();
  EXPECT_TRUE(torch::equal(taken, torch::full({2}, 3.0)));
  EXPECT_FALSE(w.grad().defined());
}

TEST(GradientHook, AReducerIsCalledWithTheTensorThatHoldsTheGradient) {
  const at::Tensor w = weight(), master = weight(), older = weight();
  const auto move_to = [](const at::Tensor& to) {
    return [to](at::Tensor& holder) {
      to.mutable_grad() = holder.grad();
      holder.mutable_grad() = at::Tensor();
      holder = to;
    };
  };
  at::Tensor seen;
  const GradientHook reduce(w, GradientHookOrder::kReduce, [&](const at::Tensor& holder) { seen = holder; });
  w.sum().backward();
  EXPECT_TRUE(seen.is_same(w));
  w.mutable_grad() = at::Tensor();
  const GradientHook old_move(w, GradientHookOrder::kMove, move_to(older));
  const GradientHook move(w, GradientHookOrder::kMove, move_to(master));
  (3 * w).sum().backward();
  EXPECT_TRUE(seen.is_same(master));
  EXPECT_TRUE(torch::equal(master.grad(), torch::full({2}, 3.0)));
  EXPECT_FALSE(older.grad().defined()) << "the newer hook has taken the gradient";
}

TEST(GradientHook, EndsWithItsHandleWhoeverHoldsIt) {
  const at::Tensor w = weight();
  int calls = 0;
  const auto count = [&](const at::Tensor&) { ++calls; };
  GradientHook first(w, GradientHookOrder::kMove, count), second(w, GradientHookOrder::kMove, count);
  first = std::move(second);  // ends the first one
  w.sum().backward();
  EXPECT_EQ(calls, 1);
  { const GradientHook moved = std::move(first); }
  w.sum().backward();
  EXPECT_EQ(calls, 1);
}

TEST(GradientHook, LetsAnotherTakeItsPlace) {
  const at::Tensor w = weight();
  int calls = 0;
  {
    const GradientHook hook(w, GradientHookOrder::kMove, [&](const at::Tensor&) { ++calls; });
    torch::autograd::impl::set_post_acc_grad_hooks(w, nullptr);
  }
  w.sum().backward();
  EXPECT_EQ(calls, 0);
}

TEST(GradientHook, RefusesATensorThatAccumulatesNothing) {
  const at::Tensor computed = weight() * 2;
  EXPECT_THROW(GradientHook(computed, GradientHookOrder::kMove, [](const at::Tensor&) {}), c10::ValueError);
}

}  // namespace
}  // namespace mantissa::gradient_hooks_test
