#include "mantissa/amp/grad_scaler.h"

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mantissa/amp/autocast.h"
#include "mantissa/amp/test_support_internal.h"
#include "mantissa/core/device.h"

namespace mantissa::grad_scaler_test {
namespace {

using testing::HasSubstr;
using torch::optim::SGD;

TEST(GradScaler, GS01_GS02_OptionsOutOfRangeAreRefused) {
  expect_error<c10::ValueError>([] { GradScaler(at::kCPU, {.growth_factor = 1.0}); },
                                "must be > 1.0 and finite; got 1");
  expect_error<c10::ValueError>([] { GradScaler(at::kCPU, {.growth_factor = std::nan("")}); },
                                "must be > 1.0");
  expect_error<c10::ValueError>([] { GradScaler(at::kCPU, {.backoff_factor = 1.0}); },
                                "must be < 1.0 and at least 0; got 1");
  for (const double scale : {0.0, -1.0, 1e39, static_cast<double>(kInf), std::nan("")}) {
    expect_error<c10::ValueError>([&] { GradScaler(at::kCPU, {.init_scale = scale}); },
                                  "init_scale must be positive");
  }
  expect_error<c10::ValueError>([] { GradScaler(at::kCPU, {.growth_interval = 0}); }, "must be at least 1");
  EXPECT_NO_THROW(GradScaler(at::kCPU, {.backoff_factor = 0.0}));
  EXPECT_NO_THROW(GradScaler(at::kCPU, {.growth_factor = 0.5, .backoff_factor = 2.0, .enabled = false}));
}

TEST(GradScaler, GS03_CudaWithoutCudaIsDisabledWithAWarning) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "has a CUDA device";
  Warnings warnings;
  EXPECT_FALSE(GradScaler(at::kCUDA).is_enabled());
  ASSERT_EQ(warnings.texts.size(), 1u);
  EXPECT_THAT(warnings.texts[0], HasSubstr("gradient scaling is disabled"));
  GradScaler(at::kCUDA, {.enabled = false});
  EXPECT_EQ(warnings.texts.size(), 1u);
}

TEST(GradScaler, GS04_GS05_DisabledPassesThrough) {
  GradScaler scaler(at::kCPU, {.growth_factor = 3.0, .growth_interval = 7, .enabled = false});
  EXPECT_FALSE(scaler.is_enabled());
  const auto loss = torch::ones({});
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  EXPECT_TRUE(scaler.scale(std::vector<at::Tensor>{loss})[0].is_same(loss));
  const auto p = with_grad({kInf});
  SGD optimizer({p}, 1.0);
  scaler.unscale_(optimizer);
  scaler.unscale_(optimizer);
  EXPECT_EQ(p.grad().item<float>(), kInf);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_EQ(p.item<float>(), -kInf);
  scaler.update();
  scaler.update(3.0);
  scaler.update(torch::ones({2}));
  const auto value = scaler.step(optimizer, [] { return torch::full({}, 5.0); });
  EXPECT_EQ(value.item<float>(), 5.f);
  EXPECT_EQ(scaler.get_scale(), 1.0);
  EXPECT_EQ(scaler.get_growth_tracker(), 0);
  EXPECT_EQ(scaler.get_growth_factor(), 3.0);
  EXPECT_EQ(scaler.get_growth_interval(), 7);
  EXPECT_FALSE(scaler.found_inf(optimizer).defined());
  EXPECT_TRUE(scaler.state_dict().empty());
  EXPECT_NO_THROW(scaler.load_state_dict({{"nonsense", 1}}));
}

TEST(GradScaler, GS06_GS07_GS09_IsLazyOnAnyDevice) {
  GradScaler scaler(at::Device("cpu"), {.init_scale = 8.0});
  EXPECT_EQ(scaler.get_scale(), 8.0);
  EXPECT_EQ(scaler.get_growth_tracker(), 0);
  EXPECT_TRUE(scaler.scale(std::vector<at::Tensor>{}).empty());
  SGD optimizer({with_grad({1})}, 1.0);
  EXPECT_THROW(scaler.unscale_(optimizer), c10::Error);  // an empty list does not initialise
  EXPECT_TRUE(GradScaler(at::kXLA).is_enabled());
}

TEST(GradScaler, TheScaleOnTheDeviceIsKnownBeforeTheFirstUse) {
  GradScaler scaler(at::kCPU, {.init_scale = 8.0});
  EXPECT_EQ(scaler.scale_on_device().item<float>(), 8);
  scaler.scale(torch::zeros({}));
  scaler.update(4.0);
  EXPECT_EQ(scaler.scale_on_device().item<float>(), 4);
  EXPECT_EQ(GradScaler(at::kCPU, {.init_scale = 8.0, .enabled = false}).scale_on_device().item<float>(), 1);
}

TEST(GradScaler, GS08_CallsBeforeScaleNameTheCallAndTheCure) {
  GradScaler scaler(at::kCPU);
  SGD optimizer({with_grad({1})}, 1.0);
  const std::string cure = " before the scale exists; this may indicate that scaler.scale(loss) was not used";
  expect_error([&] { scaler.unscale_(optimizer); }, "attempted unscale_" + cure);
  expect_error([&] { scaler.step(optimizer); }, "attempted step" + cure);
  expect_error([&] { scaler.update(); }, "attempted update" + cure);
  expect_error([&] { scaler.update(2.0); }, "attempted update" + cure);
  expect_error([&] { scaler.update(torch::ones({})); }, "attempted update" + cure);
}

TEST(GradScaler, GS10_FactorsMayBeSetBeforeTheFirstScale) {
  GradScaler scaler(at::kCPU, {.init_scale = 8.0});
  scaler.set_growth_factor(4.0);
  scaler.set_backoff_factor(0.25);
  scaler.set_growth_interval(1);
  SGD optimizer({with_grad({1})}, 0.0);
  iterate(scaler, optimizer, 1);
  EXPECT_EQ(scaler.get_scale(), 32.0);
  iterate(scaler, optimizer, kInf);
  EXPECT_EQ(scaler.get_scale(), 8.0);
  EXPECT_EQ(scaler.get_growth_factor(), 4.0);
  EXPECT_EQ(scaler.get_backoff_factor(), 0.25);
  EXPECT_EQ(scaler.get_growth_interval(), 1);
}

struct Losses {
  at::Tensor policy, value;
  auto tensors() { return std::tie(policy, value); }
};

template <typename T>
concept Scalable = requires(GradScaler scaler, const T& tree) {
  scaler.scale(tree);
};

TEST(GradScaler, GS12_TreesKeepTheirStructure) {
  GradScaler scaler(at::kCPU, {.init_scale = 2.0});
  const auto one = torch::ones({});
  const std::vector<std::pair<at::Tensor, std::vector<at::Tensor>>> nested = {{one, {one, one * 3}},
                                                                              {one * 5, {}}};
  const auto scaled = scaler.scale(nested);
  ASSERT_EQ(scaled.size(), 2u);
  EXPECT_EQ(scaled[0].second[1].item<float>(), 6.f);
  EXPECT_EQ(scaled[1].first.item<float>(), 10.f);
  EXPECT_EQ(nested[1].first.item<float>(), 5.f);
  const auto map = scaler.scale(std::map<std::string, at::Tensor>{{"a", one}});
  EXPECT_EQ(map.at("a").item<float>(), 2.f);
  EXPECT_EQ(scaler.scale(Losses{one, one * 2}).value.item<float>(), 4.f);
  EXPECT_EQ(scaler.scale({one, one})[1].item<float>(), 2.f);
  EXPECT_EQ(scaler.scale(std::optional<at::Tensor>()), std::nullopt);
  expect_error<c10::ValueError>([&] { scaler.scale(at::Tensor()); }, "undefined");
  // The compiler itself says "must be a Tensor or an iterable of Tensors".
  static_assert(Scalable<std::map<int, std::tuple<at::Tensor, at::Tensor>>>);
  static_assert(!Scalable<std::string> && !Scalable<std::vector<float>> &&
                !Scalable<std::pair<at::Tensor, int>>);
}

TEST(GradScaler, GS13_PromotesAsTorch) {
  GradScaler scaler(at::kCPU);
  EXPECT_EQ(scaler.scale(torch::ones({}, at::kHalf)).scalar_type(), at::kFloat);
  const auto half = scaler.scale(torch::full({1}, 3, at::kHalf));
  EXPECT_EQ(half.scalar_type(), at::kHalf);
  EXPECT_EQ(half.item<float>(), kInf);
  EXPECT_EQ(scaler.scale(torch::ones({1}, at::kBFloat16)).scalar_type(), at::kBFloat16);
  EXPECT_EQ(scaler.scale(torch::ones({1}, at::kInt)).scalar_type(), at::kFloat);
  EXPECT_EQ(scaler.scale(torch::ones({1}, at::kDouble)).scalar_type(), at::kDouble);
}

TEST(GradScaler, GS14_GS40_OnCudaAndTheCpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  GradScaler scaler(at::kCUDA, {.init_scale = 4.0});
  const auto scaled = scaler.scale({torch::ones({}, at::kCUDA), torch::ones({})});
  EXPECT_TRUE(scaled[0].is_cuda());
  EXPECT_TRUE(scaled[1].is_cpu());
  EXPECT_EQ(scaled[1].item<float>(), 4.f);
  const auto on_gpu = parameter(torch::ones({1}, at::kCUDA), torch::full({1}, 4.f, at::kCUDA));
  const auto on_cpu = with_grad({kInf});
  SGD optimizer({on_gpu, on_cpu}, 1.0);
  EXPECT_FALSE(scaler.step(optimizer));
  EXPECT_TRUE(scaler.found_inf(optimizer).is_cuda());
  EXPECT_EQ(scaler.found_inf(optimizer).item<float>(), 1.f);
  EXPECT_EQ(on_gpu.grad().item<float>(), 1.f);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 2.0);  // one backoff, however many devices
}

TEST(GradScaler, GS15_UnscalesByTheRoundedReciprocal) {
  auto scaler = used_scaler({.init_scale = 3.0});
  const auto single = with_grad({7.f}), reduced = with_grad({7.f}, at::kBFloat16),
             exact = with_grad({7.f}, at::kDouble);
  SGD optimizer({single, reduced, exact}, 1.0);
  scaler.unscale_(optimizer);
  const float inv = static_cast<float>(1.0 / 3.0);
  EXPECT_EQ(single.grad().item<float>(), 7.f * inv);
  EXPECT_EQ(reduced.grad().item<float>(), static_cast<float>(c10::BFloat16(7.f * inv)));
  EXPECT_EQ(exact.grad().item<double>(), 7.0 * inv);  // float64 gradients also use float32's reciprocal
}

TEST(GradScaler, GS15_TheReciprocalIsFloat64sRounded) {
  torch::manual_seed(3);
  auto scaler = used_scaler({.min_scale = 0.0});
  const auto p = with_grad({1.f});
  SGD optimizer({p}, 0.0);
  const auto exponents = torch::randint(-149, 128, {2000}), fractions = torch::rand({2000}) + 1;
  for (int64_t i = 0; i < exponents.numel(); ++i) {
    const double scale = static_cast<float>(
        std::ldexp(fractions[i].item<double>(), static_cast<int>(exponents[i].item<float>())));
    scaler.update(scale);
    set_grad(p, 1);
    scaler.unscale_(optimizer);
    EXPECT_EQ(p.grad().item<float>(), static_cast<float>(1 / scale)) << scale;
  }
}

TEST(GradScaler, GS16_Fp16AndComplexGradientsAreRefusedBeforeAnyChange) {
  auto scaler = used_scaler({.init_scale = 2.0});
  const auto fine = with_grad({8.f}), half = with_grad({8.f}, at::kHalf);
  SGD optimizer({fine, half}, 1.0);
  expect_error<c10::ValueError>([&] { scaler.unscale_(optimizer); }, "Attempting to unscale FP16 gradients");
  EXPECT_EQ(fine.grad().item<float>(), 8.f);
  expect_error<c10::ValueError>([&] { scaler.step(optimizer); }, "Attempting to unscale FP16 gradients");
  half.mutable_grad().reset();
  EXPECT_TRUE(scaler.step(optimizer));  // the failed call has not marked the optimizer as stepped
  SGD complex(
      {with_grad({8.f}), parameter(torch::ones({1}, at::kComplexFloat), torch::ones({1}, at::kComplexFloat))},
      1.0);
  expect_error<c10::NotImplementedError>([&] { scaler.unscale_(complex); },
                                         "not implemented for ComplexFloat");
  EXPECT_EQ(complex.param_groups()[0].params()[0].grad().item<float>(), 8.f);
}

TEST(GradScaler, GS17_GS24_ParametersWithoutGradients) {
  auto scaler = used_scaler({.init_scale = 2.0});
  const auto p = with_grad({8.f});
  SGD some({torch::ones({1}).requires_grad_(), p}, 1.0);
  EXPECT_TRUE(scaler.step(some));
  EXPECT_EQ(p.item<float>(), -3.f);
  SGD none({torch::ones({1}).requires_grad_()}, 1.0);
  EXPECT_NO_THROW(scaler.unscale_(none));
  expect_error([&] { scaler.step(none); }, "No inf checks were recorded for this optimizer");
}

TEST(GradScaler, GS18_GS19_GS20_CallsOutOfOrder) {
  auto scaler = used_scaler();
  SGD optimizer({with_grad({1.f})}, 1.0);
  scaler.unscale_(optimizer);
  expect_error([&] { scaler.unscale_(optimizer); },
               "already been called on this optimizer since the last update()");
  scaler.step(optimizer);
  expect_error([&] { scaler.unscale_(optimizer); }, "being called after step()");
  expect_error([&] { scaler.step(optimizer); }, "step() has already been called since the last update()");
  scaler.update();
  EXPECT_TRUE(scaler.step(optimizer));
}

TEST(GradScaler, GS21_GS27_AnyNonFiniteGradientSkipsTheStep) {
  for (const float bad : {kInf, -kInf, kNan}) {
    auto scaler = used_scaler({.init_scale = 4.0});
    const auto a = with_grad({4.f, bad, 8.f}), b = with_grad({16.f});
    SGD optimizer({a, b}, torch::optim::SGDOptions(1.0).momentum(0.9));
    EXPECT_FALSE(scaler.step(optimizer));
    EXPECT_EQ(scaler.found_inf(optimizer).item<float>(), 1.f);
    EXPECT_EQ(a.grad()[0].item<float>(), 1.f);  // finite values are unscaled all the same
    EXPECT_EQ(a.grad()[2].item<float>(), 2.f);
    EXPECT_EQ(b.grad().item<float>(), 4.f);
    EXPECT_FALSE(std::isfinite(a.grad()[1].item<float>()));
    EXPECT_TRUE(at::equal(a, torch::ones({3})));
    EXPECT_TRUE(optimizer.state().empty());
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 2.0);
  }
}

TEST(GradScaler, GS22_TheCheckIsOnTheIncomingValue) {
  auto scaler = used_scaler({.init_scale = 0.5});
  const auto p = with_grad({3e38f});
  SGD optimizer({p}, 1.0);
  scaler.unscale_(optimizer);
  EXPECT_EQ(p.grad().item<float>(), kInf);
  EXPECT_EQ(scaler.found_inf(optimizer).item<float>(), 0.f);
}

TEST(GradScaler, GS21_ANanLossSkipsTheStepAndBacksOff) {
  GradScaler scaler(at::kCPU, {.init_scale = 8.0});
  const auto w = torch::ones({2}).requires_grad_();
  SGD optimizer({w}, 1.0);
  const auto loss = (w * kNan).sum();
  EXPECT_TRUE(std::isnan(scaler.scale(loss).item<float>()));
  scaler.scale(loss).backward();
  EXPECT_FALSE(scaler.step(optimizer));
  scaler.update();
  EXPECT_TRUE(at::equal(w, torch::ones({2})));
  EXPECT_EQ(scaler.get_scale(), 4.0);
}

TEST(GradScaler, GS23_NanWrittenAfterUnscaleIsNotDetected) {
  auto scaler = used_scaler();
  const auto p = with_grad({1.f});
  SGD optimizer({p}, 1.0);
  scaler.unscale_(optimizer);
  set_grad(p, kNan);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_TRUE(std::isnan(p.item<float>()));
}

TEST(GradScaler, GS25_AParameterInTwoOptimizersIsUnscaledTwice) {
  auto scaler = used_scaler({.init_scale = 8.0});
  const auto p = with_grad({64.f});
  SGD a({p}, 1.0), b({p}, 1.0);
  scaler.unscale_(a);
  scaler.unscale_(b);
  EXPECT_EQ(p.grad().item<float>(), 1.f);
}

TEST(GradScaler, GS26_SparseGradients) {
  auto scaler = used_scaler({.init_scale = 2.0});
  const auto p = torch::ones({2}).requires_grad_();
  p.mutable_grad() = sparse({4.f, 6.f});
  SGD optimizer({p}, 1.0);
  scaler.unscale_(optimizer);
  EXPECT_FALSE(p.grad().is_coalesced());
  EXPECT_TRUE(at::equal(p.grad()._values(), torch::tensor({2.f, 3.f})));
  scaler.step(optimizer);
  scaler.update();
  EXPECT_EQ(p[0].item<float>(), -4.f);

  p.mutable_grad() = sparse({3e38f, 3e38f});  // overflows in float32 only when summed: not detected
  scaler.unscale_(optimizer);
  EXPECT_EQ(scaler.found_inf(optimizer).item<float>(), 0.f);
}

TEST(GradScaler, GS28_ClosuresAreRefused) {
  auto scaler = used_scaler();
  const auto p = with_grad({1.f});
  SGD optimizer({p}, 1.0);
  bool called = false;
  expect_error([&] { scaler.step(optimizer, [&] { return called = true, torch::ones({}); }); },
               "closure use is not currently supported");
  EXPECT_FALSE(called);
  EXPECT_EQ(p.item<float>(), 1.f);
}

TEST(GradScaler, GS30_GS31_GS40_OptimizersAreIndependentAndShareOneScale) {
  auto scaler = used_scaler({.init_scale = 8.0, .growth_interval = 1});
  const auto pa = with_grad({kInf}), pb = with_grad({8.f}), pc = with_grad({kNan});
  SGD a({pa}, 1.0), b({pb}, 1.0), c({pc}, 1.0), idle({torch::ones({1}).requires_grad_()}, 1.0);
  EXPECT_FALSE(scaler.step(a));
  EXPECT_TRUE(scaler.step(b));
  EXPECT_FALSE(scaler.step(c));
  EXPECT_EQ(pb.item<float>(), 0.f);
  EXPECT_THROW(scaler.step(idle), c10::Error);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 4.0);  // once, for two overflows
  set_grad(pa, 4.f);
  EXPECT_TRUE(scaler.step(a));  // b took no part, which is allowed
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 8.0);
}

TEST(GradScaler, GS41_AccumulationEqualsUnscaledAccumulation) {
  torch::manual_seed(1);
  const auto start = torch::randn({4, 3});
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < 3; ++i) inputs.push_back(torch::randn({5, 4}));
  const auto train = [&](bool scaled) {
    GradScaler scaler(at::kCPU, {.enabled = scaled});
    const auto w = start.clone().requires_grad_();
    SGD optimizer({w}, 0.1);
    for (const auto& x : inputs) scaler.scale((x.mm(w).tanh().sum() / 3)).backward();
    scaler.step(optimizer);
    scaler.update();
    return w.detach();
  };
  EXPECT_TRUE(at::equal(train(true), train(false)));
}

TEST(GradScaler, GS55_AnUnscaledLossIsNoticedInTheFirstIterationOnly) {
  auto scaler = used_scaler();
  const auto p = with_grad({65536.f});
  SGD optimizer({p}, 1.0);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_EQ(p.item<float>(), 0.f);
}

TEST(GradScaler, AFirstScaleInInferenceModeDoesNotSpoilTraining) {
  GradScaler scaler(at::kCPU, {.init_scale = 8.0});
  {
    const c10::InferenceMode inference;
    EXPECT_EQ(scaler.scale(torch::ones({})).item<float>(), 8.f);
  }
  const auto w = torch::ones({}).requires_grad_();
  SGD optimizer({w}, 1.0);
  scaler.scale(w * 2).backward();
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  EXPECT_EQ(w.item<float>(), -1.f);
}

TEST(GradScaler, GradientsThatHaveAGraphAreUnscaledInPlace) {
  auto scaler = used_scaler({.init_scale = 4.0});
  const auto x = torch::tensor({3.f}).requires_grad_();
  SGD optimizer({x}, 1.0);
  x.mutable_grad() = x * 8;  // as after backward() with create_graph
  scaler.unscale_(optimizer);
  EXPECT_EQ(x.grad().item<float>(), 6.f);
}

TEST(GradScaler, CannotBeCopiedButMoves) {
  static_assert(!std::is_copy_constructible_v<GradScaler> && !std::is_copy_assignable_v<GradScaler>);
  auto scaler = used_scaler({.init_scale = 8.0});
  SGD optimizer({with_grad({1.f})}, 1.0);
  scaler.unscale_(optimizer);
  GradScaler moved = std::move(scaler);
  EXPECT_EQ(moved.get_scale(), 8.0);
  EXPECT_TRUE(moved.step(optimizer));
}

TEST(GradScaler, TrainsOneStep) {
  torch::manual_seed(0);
  torch::nn::Linear model(4, 1);
  SGD optimizer(model->parameters(), 0.1);
  GradScaler scaler(at::kCPU, {.init_scale = 1024.0});
  const auto x = torch::randn({8, 4}), y = torch::randn({8, 1});
  const auto loss_of_step = [&] {
    at::Tensor loss;
    {
      const Autocast autocast(at::kCPU, {.dtype = at::kHalf});
      loss = torch::mse_loss(model(x), y);
    }
    optimizer.zero_grad();
    scaler.scale(loss).backward();
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update();
    return loss.item<float>();
  };
  const float before = loss_of_step();
  EXPECT_GT(before, loss_of_step());
  EXPECT_EQ(scaler.get_growth_tracker(), 2);
}

TEST(GradScaler, ForgetsAnOptimizerWhoseStepIsNotTaken) {
  auto scaler = used_scaler({.init_scale = 4.0});
  const auto p = with_grad({8.f});
  SGD optimizer({p}, 1.0);
  scaler.unscale_(optimizer);
  scaler.forget(optimizer);
  set_grad(p, 8.f);
  EXPECT_NO_THROW(scaler.unscale_(optimizer));
  EXPECT_EQ(p.grad().item<float>(), 2.f);
}

TEST(LastStep, IsThatOfTheOptimizerInQuestion) {
  auto scaler = used_scaler();
  SGD first({with_grad({1.f})}, 1.0), second({with_grad({kInf})}, 1.0), third({with_grad({1.f})}, 1.0);
  for (SGD* optimizer : {&first, &second, &third}) scaler.step(*optimizer);
  EXPECT_FALSE(scaler.last_step(first).skipped());
  EXPECT_TRUE(scaler.last_step(second).skipped());
  EXPECT_FALSE(scaler.last_step(third).skipped());
}

TEST(GradScaler, ANegativeNewScaleBecomesTheLeastOne) {
  auto scaler = used_scaler({.min_scale = 0});
  scaler.update(torch::full({}, -2.f));
  EXPECT_EQ(scaler.get_scale(), 0);
}

}  // namespace
}  // namespace mantissa::grad_scaler_test
