#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/record_function.h>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/test_support_internal.h"
#include "mantissa/core/step_scaling.h"

namespace mantissa {
namespace {

using testing::HasSubstr;
using torch::optim::SGD;

/// AdamW over libtorch's fused kernel: unscales and skips by itself, as Python's fused=True.
class FusedAdamW : public torch::optim::Optimizer, public StepSupportsAmpScaling {
 public:
  explicit FusedAdamW(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::AdamWOptions>()) {
    for (const auto& p : params()) {
      moments.push_back(torch::zeros_like(p));
      squares.push_back(torch::zeros_like(p));
      steps.push_back(torch::zeros({}));
    }
  }
  at::Tensor step(LossClosure) override {
    const at::NoGradGuard no_grad;
    seen_scale = grad_scale.defined() ? std::optional<float>(grad_scale.item<float>()) : std::nullopt;
    seen_found_inf = found_inf.item<float>();
    if (fails) throw std::runtime_error("optimizer failed");
    std::vector<at::Tensor> ps, gs, ms, vs, ts;
    for (size_t i = 0; i < params().size(); ++i) {
      const at::Tensor& gradient = params()[i].grad();
      if (!gradient.defined() || gradient.is_sparse()) continue;
      ps.push_back(params()[i]);
      gs.push_back(gradient);
      ms.push_back(moments[i]);
      vs.push_back(squares[i]);
      ts.push_back(steps[i]);
    }
    if (ps.empty()) return {};
    const auto optional = [](const at::Tensor& t) {
      return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
    };
    // A skipped step does not count: the kernel leaves the step counters to the caller.
    for (auto& t : ts) t += 1 - found_inf;
    at::_fused_adamw_(ps, gs, ms, vs, {}, ts, 1e-2, 0.9, 0.999, 1e-2, 1e-8, false, false,
                      optional(grad_scale), optional(found_inf));
    return {};
  }
  std::vector<at::Tensor> moments, squares, steps;
  std::optional<float> seen_scale;
  float seen_found_inf = -1;
  bool fails = false;

 private:
  const std::vector<at::Tensor>& params() const { return param_groups_[0].params(); }
};

TEST(GradScaler, GS42_GS43_GS45_SelfUnscalingOptimizersGetScaleAndFlag) {
  auto scaler = used_scaler({.init_scale = 4.0});
  const auto p = with_grad({8.f, -4.f}), plain = with_grad({2.f, -1.f});
  FusedAdamW fused({p}), reference({plain});
  EXPECT_TRUE(scaler.step(fused));
  EXPECT_EQ(fused.seen_scale, 4.f);
  EXPECT_EQ(fused.seen_found_inf, 0.f);
  EXPECT_FALSE(fused.grad_scale.defined());
  EXPECT_FALSE(fused.found_inf.defined());
  EXPECT_TRUE(at::equal(p.grad(), torch::tensor({2.f, -1.f})));
  reference.found_inf = torch::zeros({});
  reference.step(nullptr);
  EXPECT_TRUE(at::equal(p, plain));
  expect_error([&] { scaler.unscale_(fused); }, "being called after step()");
  expect_error([&] { scaler.step(fused); }, "step() has already been called");
  scaler.update();

  p.mutable_grad() = torch::tensor({kInf, 4.f});
  const auto before = p.detach().clone(), moment = fused.moments[0].clone();
  EXPECT_TRUE(scaler.step(fused));
  EXPECT_EQ(scaler.found_inf(fused).item<float>(), 1.f);
  EXPECT_EQ(fused.seen_found_inf, 1.f);
  EXPECT_TRUE(at::equal(p, before));
  EXPECT_TRUE(at::equal(fused.moments[0], moment));
  EXPECT_EQ(fused.steps[0].item<float>(), 1.f);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 2.0);
}

TEST(GradScaler, GS43_TheCallersScaleStaysInForce) {
  auto scaler = used_scaler({.init_scale = 4.0});
  FusedAdamW fused({with_grad({8.f})});
  fused.grad_scale = torch::full({}, 3.f);
  scaler.step(fused);
  EXPECT_EQ(fused.seen_scale, 12.f);
}

TEST(GradScaler, GS44_AfterUnscaleTheOptimizerGetsNoScale) {
  auto scaler = used_scaler({.init_scale = 4.0});
  const auto p = with_grad({8.f});
  FusedAdamW fused({p});
  scaler.unscale_(fused);
  EXPECT_EQ(p.grad().item<float>(), 2.f);
  scaler.step(fused);
  EXPECT_EQ(fused.seen_scale, std::nullopt);
  scaler.update();
  set_grad(p, kInf);
  scaler.unscale_(fused);
  fused.grad_scale = torch::full({}, 3.f);
  scaler.step(fused);
  EXPECT_EQ(fused.seen_scale, 3.f);
  EXPECT_EQ(fused.seen_found_inf, 1.f);
}

TEST(GradScaler, GS46_SelfUnscalingOptimizersMayHaveFp16Gradients) {
  auto scaler = used_scaler({.init_scale = 4.0});
  const auto p = with_grad({8.f}, at::kHalf);
  FusedAdamW fused({p});
  EXPECT_TRUE(scaler.step(fused));
  EXPECT_LT(p.item<float>(), 1.f);
}

TEST(GradScaler, GS47_SelfUnscalingWithoutGradients) {
  auto scaler = used_scaler();
  FusedAdamW fused({torch::ones({1}).requires_grad_()});
  EXPECT_TRUE(scaler.step(fused));
  EXPECT_EQ(fused.seen_found_inf, 0.f);
  expect_error([&] { scaler.update(); }, "No inf checks were recorded prior to update");
}

TEST(GradScaler, AThrowingOptimizerKeepsNoScaleOfThisStep) {
  auto scaler = used_scaler({.init_scale = 4.0});
  FusedAdamW fused({with_grad({8.f})});
  fused.fails = true;
  EXPECT_THROW(scaler.step(fused), std::runtime_error);
  EXPECT_FALSE(fused.grad_scale.defined());
  EXPECT_FALSE(fused.found_inf.defined());
  fused.fails = false;
  EXPECT_TRUE(scaler.step(fused));  // not counted as stepped
  EXPECT_EQ(fused.seen_scale, 4.f);
}

TEST(GradScaler, GS26_Fp16SparseGradientsAreCoalescedBeforeTheCheck) {
  auto scaler = used_scaler({.init_scale = 2.0});
  const auto half = torch::ones({2}, at::kHalf).requires_grad_();
  half.mutable_grad() = sparse({60000.f, 60000.f}, at::kHalf);
  FusedAdamW fused({half});
  scaler.step(fused);
  EXPECT_TRUE(half.grad().is_coalesced());
  EXPECT_EQ(fused.seen_found_inf, 1.f);
}

/// Values read from a device to the host in this scope, by this thread.
class HostReads {
 public:
  HostReads() {
    count_ = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& fn) -> std::unique_ptr<at::ObserverContext> {
          if (std::string(fn.name()) == "aten::_local_scalar_dense") ++count_;
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~HostReads() { at::removeCallback(handle_); }
  int count() const { return count_; }

 private:
  static inline thread_local int count_ = 0;
  at::CallbackHandle handle_;
};

/// Takes both tensors, reads neither.
class SelfUnscalingNoop : public torch::optim::Optimizer, public StepSupportsAmpScaling {
 public:
  explicit SelfUnscalingNoop(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure) override { return {}; }
};

TEST(GradScaler, GS54_OnlyStepReadsFromTheDevice) {
  GradScaler scaler(at::kCPU);
  SGD optimizer({with_grad({1.f}), with_grad({1.f}, at::kDouble)}, 1.0);
  SelfUnscalingNoop fused({with_grad({1.f})});
  const auto loss = torch::ones({});
  HostReads reads;
  loss.item();
  ASSERT_EQ(reads.count(), 1);
  scaler.scale(loss);
  scaler.unscale_(optimizer);
  EXPECT_EQ(reads.count(), 1);
  scaler.step(optimizer);
  EXPECT_EQ(reads.count(), 2);
  scaler.step(fused);
  scaler.found_inf(fused);
  scaler.update();
  scaler.step(fused);
  scaler.update(torch::ones({}));
  EXPECT_EQ(reads.count(), 2);
}

}  // namespace
}  // namespace mantissa
