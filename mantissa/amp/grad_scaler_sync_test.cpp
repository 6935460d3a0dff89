// Which calls wait for a device, and what a CUDA graph can capture.
#include <functional>
#include <string>
#include <vector>

#include "mantissa/amp/clip_grad.h"
#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/test_support_internal.h"
#include "mantissa/core/device.h"

#ifdef MANTISSA_TEST_CUDA_GRAPH
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace mantissa::grad_scaler_sync_test {
namespace {

using torch::optim::SGD;

TEST(HostReads, CountsEveryWayToLookAtAValue) {
  const auto t = torch::ones({});
  const std::vector<std::function<void()>> looks = {
      [&] { t.item(); },
      [&] { t.item<float>(); },
      [&] { t.is_nonzero(); },
      [&] { at::equal(t, t); },
      [&] { at::allclose(t, t); },
      [&] { static_cast<void>(t.isfinite().all().item<bool>()); },
      [&] { at::nonzero(t); },
      [&] { at::masked_select(t, t > 0); },
      [&] { at::_local_scalar_dense(t); }};
  for (size_t i = 0; i < looks.size(); ++i) {
    HostReads reads;
    looks[i]();
    EXPECT_GE(reads.count(), 1) << "way " << i;
  }
  HostReads none;
  t.mul(2).add_(t).clamp_(t, t);
  EXPECT_EQ(none.count(), 0);
}

TEST(GradScaler, GS54_OnlyStepReadsFromTheDevice) {
  GradScaler scaler(at::kCPU);
  SGD optimizer({with_grad({1.f}), with_grad({1.f}, at::kDouble)}, 1.0);
  const auto loss = torch::ones({});
  HostReads reads;
  scaler.scale(loss);
  scaler.unscale_(optimizer);
  scaler.clip_grad_norm_(optimizer, 1.0);
  scaler.clip_grad_value_(optimizer, 1.0);
  EXPECT_EQ(reads.count(), 0);
  scaler.step(optimizer);
  EXPECT_EQ(reads.count(), 1);
  scaler.found_inf(optimizer);
  scaler.update();
  scaler.step(optimizer);
  EXPECT_EQ(reads.count(), 2);
  scaler.update(torch::ones({}));
  scaler.update(2.0);
  EXPECT_EQ(reads.count(), 2);
}

/// One iteration of everything that a training loop may do: two accumulated losses and two optimizers, one
/// with fp32 gradients and one with fp16 gradients, which are clipped while scaled. It uses SGD, because the
/// CPU's fused AdamW itself reads its step counters with item(); the one for CUDA does not.
struct Iteration {
  explicit Iteration(at::Device device, int64_t hysteresis_steps = 2)
      : scaler(device, {.init_scale = 8.0, .growth_interval = 2, .hysteresis_steps = hysteresis_steps}),
        w(torch::full({3, 3}, 0.5, device).requires_grad_()),
        h(torch::full({3}, 0.5, at::TensorOptions(device).dtype(at::kHalf)).requires_grad_()),
        x(torch::ones({2, 3}, device)),
        a({w}, 0.1),
        b({h}, 0.1) {}

  void run() {
    for (auto p : {w, h}) {
      if (p.grad().defined()) p.grad().zero_();
    }
    for (int k = 0; k < 2; ++k) {
      const auto loss = x.mm(w).mul(h).sum();
      scaler.scale(loss).backward();
    }
    scaler.unscale_(a);
    clip_grad_norm_(w, 1.0);
    scaler.clip_grad_value_(a, 0.5);
    scaler.clip_grad_norm_(b, 1.0);
    scaler.clip_grad_value_(b, 0.25);
    scaler.step(a);
    scaler.step(b);
    scaler.update();
  }

  GradScaler scaler;
  at::Tensor w, h, x;
  KernelSgd a, b;
};

TEST(GradScaler, GS45_GS54_AnIterationOfSelfUnscalingOptimizersReadsNothing) {
  for (const int64_t hysteresis_steps : {1, 2}) {
    Iteration iteration(at::kCPU, hysteresis_steps);
    iteration.run();
    const auto before = iteration.w.detach().clone();
    // Overflowed steps are skipped without a host read either.
    for (const float input : {1.f, kInf, kInf, kNan, 1.f}) {
      iteration.x.fill_(input);
      HostReads reads;
      iteration.run();
      EXPECT_EQ(reads.count(), 0) << input;
    }
    EXPECT_FALSE(at::equal(iteration.w, before));
    EXPECT_TRUE(iteration.w.isfinite().all().item<bool>());
    EXPECT_TRUE(iteration.h.isfinite().all().item<bool>());
    EXPECT_EQ(iteration.scaler.get_scale(),
              hysteresis_steps == 1 ? 2.0 : 4.0);  // grown once, three overflows
  }
}

TEST(GradScaler, GradientsThatWaitThroughAnotherBackwardPassAreNotReadOnTheHost) {
  TrackedScaler scaler;
  scaler.scale(torch::zeros({}));
  const auto waits = with_grad({8.F}, at::kHalf), other = with_grad({8.F});
  KernelSgd a({waits}, 0.5), b({other}, 0.5);
  HostReads reads;
  scaler.clip_grad_norm_(a, 1.0);
  scaler.begin_backward();
  scaler.scale(other.sum()).backward();
  scaler.end_backward();
  scaler.clip_grad_value_(a, 1.0);
  for (KernelSgd* each : {&a, &b}) {
    scaler.begin_step(*each);
    scaler.step(*each);
  }
  scaler.begin_backward();
  EXPECT_EQ(reads.count(), 0);
}

/// Records the addresses of one operator's arguments, for every call in this scope.
class Addresses {
 public:
  explicit Addresses(std::string op) {
    op_ = std::move(op);
    seen_.clear();
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& fn) -> std::unique_ptr<at::ObserverContext> {
          if (fn.name() != op_) return nullptr;
          auto& call = seen_.emplace_back();
          for (const auto& input : fn.inputs()) {
            if (input.isTensor() && input.toTensor().defined())
              call.push_back(input.toTensor().const_data_ptr());
          }
          return nullptr;
        })
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~Addresses() { at::removeCallback(handle_); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  const std::vector<std::vector<const void*>>& calls() const { return seen_; }

 private:
  static inline thread_local std::string op_;
  static inline thread_local std::vector<std::vector<const void*>> seen_;
  at::CallbackHandle handle_;
};

// A captured graph writes to the addresses that these tensors had at capture.
TEST(GradScaler, ScaleAndTrackersKeepTheirMemory) {
  Iteration iteration(at::kCPU);
  iteration.run();
  Addresses updates("aten::_amp_update_scale_");
  iteration.run();
  iteration.x.fill_(kInf);
  iteration.run();
  iteration.scaler.update(4.0);
  iteration.scaler.update(torch::full({}, 2.f));
  iteration.scaler.load_state_dict(iteration.scaler.state_dict());
  iteration.x.fill_(1);
  iteration.run();
  ASSERT_EQ(updates.calls().size(), 3u);
  for (const auto& call : updates.calls()) {
    ASSERT_EQ(call.size(), 3u);  // scale, growth tracker, flag
    EXPECT_EQ(call[0], updates.calls()[0][0]);
    EXPECT_EQ(call[1], updates.calls()[0][1]);
  }
  Addresses trackers("aten::copy_");
  iteration.run();
  const auto first = trackers.calls().back();  // update()'s last copy: the hysteresis tracker
  iteration.run();
  EXPECT_EQ(trackers.calls().back()[0], first[0]);
}

TEST(GradScaler, AnIterationIsCapturedInACudaGraph) {
#ifdef MANTISSA_TEST_CUDA_GRAPH
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  Iteration eager(at::kCUDA), captured(at::kCUDA);
  const auto side = c10::cuda::getStreamFromPool();
  {
    const c10::cuda::CUDAStreamGuard guard(side);
    for (int i = 0; i < 3; ++i) captured.run();  // warm-up: scale, gradients and libraries exist
  }
  side.synchronize();
  for (int i = 0; i < 3; ++i) eager.run();
  at::cuda::CUDAGraph graph;
  {
    const c10::cuda::CUDAStreamGuard guard(side);
    graph.capture_begin();
    captured.run();
    graph.capture_end();
  }
  for (const float input : {1.f, 1.f, kInf, kInf, kNan, 1.f, 1.f, 1.f}) {
    eager.x.fill_(input);
    captured.x.fill_(input);
    eager.run();
    graph.replay();
    EXPECT_TRUE(at::equal(captured.w, eager.w));
    EXPECT_TRUE(at::equal(captured.h, eager.h));
    EXPECT_EQ(captured.scaler.get_scale(), eager.scaler.get_scale());
    EXPECT_EQ(captured.scaler.get_growth_tracker(), eager.scaler.get_growth_tracker());
  }
  captured.scaler.update(16.0);  // acts on later replays
  graph.replay();
  EXPECT_GE(captured.scaler.get_scale(), 16.0);
#else
  GTEST_SKIP() << why_no_cuda();
#endif
}

}  // namespace
}  // namespace mantissa::grad_scaler_sync_test
