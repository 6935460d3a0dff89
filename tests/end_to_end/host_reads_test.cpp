// A whole iteration with the fused optimizers reads no tensor's value on the host, for which a GPU would have
// to wait.
#include <gtest/gtest.h>
#include <memory>

#include <torch/torch.h>

#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/test_support_internal.h"
#include "mantissa/optim/fused_adagrad.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/optim/fused_sgd.h"

namespace mantissa::host_reads_test {
namespace {

using Clip = std::function<void(GradScaler&, torch::optim::Optimizer&)>;

/// Returns the number of values read in one iteration with gradients of this value.
int reads_of_iteration(GradScaler& scaler, torch::optim::Optimizer& optimizer, float gradient,
                       const Clip& clip) {
  const HostReads reads;
  scaler.scale(torch::ones({}));
  for (const at::Tensor& p : optimizer.param_groups()[0].params())
    p.mutable_grad() = torch::full_like(p, gradient);
  clip(scaler, optimizer);
  scaler.step(optimizer);
  scaler.update();
  return reads.count();
}

TEST(HostReadsOfAnIteration, WithFusedSgdAreNone) {
  const std::vector<Clip> clips = {
      [](GradScaler&, torch::optim::Optimizer&) {},
      [](GradScaler& scaler, torch::optim::Optimizer& optimizer) { scaler.clip_grad_norm_(optimizer, 1.0); },
      [](GradScaler& scaler, torch::optim::Optimizer& optimizer) {
        scaler.clip_grad_value_(optimizer, 0.5);
      }};
  for (const auto dtype : {at::kFloat, at::kHalf}) {
    for (const Clip& clip : clips) {
      const at::Tensor weight = torch::ones({5}, dtype).set_requires_grad(true);
      FusedSGD optimizer({weight}, SGDOptions(0.1).momentum(0.9));
      GradScaler scaler(at::kCPU, {.hysteresis_steps = 2});
      for (const float gradient : {1024.0F, HUGE_VALF, 1024.0F, NAN})
        EXPECT_EQ(reads_of_iteration(scaler, optimizer, gradient, clip), 0) << dtype << " " << gradient;
      EXPECT_LT(weight[0].item<float>(), 1);
    }
  }
}

/// libtorch's own CPU kernels read the step counter and the flag, which are in the host's memory there.
/// Nothing else may be read.
TEST(HostReadsOfAnIteration, WithFusedAdamAndAdagradAreTheKernelsOwn) {
  const at::Tensor weight = torch::ones({5}).set_requires_grad(true);
  const std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers = {
      std::make_shared<FusedAdamW>(std::vector<at::Tensor>{weight}),
      std::make_shared<FusedAdam>(std::vector<at::Tensor>{weight}),
      std::make_shared<FusedAdagrad>(std::vector<at::Tensor>{weight})};
  for (const auto& optimizer : optimizers) {
    GradScaler scaler(at::kCPU);
    const Clip clip = [](GradScaler& s, torch::optim::Optimizer& o) { s.clip_grad_norm_(o, 1.0); };
    reads_of_iteration(scaler, *optimizer, 1024, clip);
    weight.mutable_grad() = torch::ones({5});
    auto& scaling = dynamic_cast<StepSupportsAmpScaling&>(*optimizer);
    scaling.grad_scale = torch::ones({});
    scaling.found_inf = torch::zeros({});
    int kernels_own = 0;
    {
      const HostReads reads;
      optimizer->step();
      kernels_own = reads.count();
    }
    EXPECT_EQ(reads_of_iteration(scaler, *optimizer, 1024, clip), kernels_own);
  }
}

}  // namespace
}  // namespace mantissa::host_reads_test
