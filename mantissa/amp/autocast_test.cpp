#include "mantissa/amp/autocast.h"

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <ATen/autocast_mode.h>

#include "mantissa/amp/test_support_internal.h"
#include "mantissa/core/device.h"
#include "mantissa/kernels/aten/overrides.h"

// The class is named Autocast in the test output too; inside it the scope object needs its full name.
namespace {

using mantissa::Warnings;
using Region = mantissa::Autocast;

struct State {
  bool enabled, cache_enabled;
  at::ScalarType dtype;
  bool operator==(const State&) const = default;
};

State state(at::DeviceType device = at::kCPU) {
  return {at::autocast::is_autocast_enabled(device), at::autocast::is_autocast_cache_enabled(),
          at::autocast::get_autocast_dtype(device)};
}

int nesting() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting();
}

const State kOutside = {false, true, at::kBFloat16};

/// Checks that no test leaves any autocast state behind.
class Autocast : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(0); }
  void TearDown() override {
    EXPECT_EQ(state(), kOutside);
    EXPECT_EQ(nesting(), 0);
  }
};

at::Tensor weight() { return torch::randn({4, 4}).requires_grad_(); }

std::string cast_of(const at::Tensor& w) { return at::mm(w, w).toString(); }

TEST_F(Autocast, AC01_DefaultsAreEnabledDeviceDtypeAndInheritedCacheFlag) {
  {
    const Region region(at::kCPU);
    EXPECT_EQ(state(), (State{true, true, at::kBFloat16}));
    EXPECT_TRUE(region.enabled());
    EXPECT_EQ(region.dtype(), at::kBFloat16);
    const Region uncached(at::kCPU, {.cache_enabled = false});
    const Region inherits(at::kCPU, {.dtype = at::kHalf});
    EXPECT_EQ(state(), (State{true, false, at::kHalf}));
    const Region inherits_dtype(at::kCPU);
    EXPECT_EQ(inherits_dtype.dtype(), at::kHalf);
  }
}

TEST_F(Autocast, AC02_UnsupportedDtypeOnTheCpuWarnsAndDisables) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kInt}) {
    Warnings warnings;
    const Region region(at::kCPU, {.dtype = dtype});
    EXPECT_FALSE(region.enabled());
    EXPECT_FALSE(state().enabled);
    ASSERT_EQ(warnings.texts.size(), 1u);
    EXPECT_THAT(warnings.texts[0], testing::HasSubstr("supports BFloat16 and Half"));
    EXPECT_THAT(warnings.texts[0], testing::HasSubstr(toString(dtype)));
  }
  Warnings warnings;
  const Region region(at::kCPU, {.dtype = at::kFloat, .enabled = false});
  EXPECT_THAT(warnings.texts, testing::IsEmpty());
}

TEST_F(Autocast, AC03_CudaWithoutCudaWarnsAndDisables) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "has a CUDA device";
  Warnings warnings;
  const Region region(at::kCUDA);
  EXPECT_FALSE(region.enabled());
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCUDA));
  ASSERT_EQ(warnings.texts.size(), 1u);
  EXPECT_THAT(warnings.texts[0], testing::HasSubstr("CUDA is not available"));
  EXPECT_FALSE(Region(at::kCUDA, {.enabled = false}).enabled());
  EXPECT_EQ(warnings.texts.size(), 1u);
}

TEST_F(Autocast, AC04_DevicesWithoutAutocastAreRefused) {
  for (const auto device : {at::kMeta, at::kVulkan, at::kFPGA}) {
    try {
      const Region region(device);
      FAIL() << "no error for " << device;
    } catch (const c10::Error& e) {
      EXPECT_THAT(e.what_without_backtrace(), testing::HasSubstr("unsupported autocast device type"));
    }
  }
}

// libtorch itself computes in any dtype that it is given: an int region returns int products.
TEST_F(Autocast, AC05_DtypesThatLibtorchWouldComputeInAreRefused) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kInt, at::kBool, at::kComplexFloat}) {
    EXPECT_THROW(Region(at::kCUDA, {.dtype = dtype}), c10::ValueError) << dtype;
  }
  Warnings warnings;
  const Region region(at::kCPU, {.dtype = at::kInt});
  EXPECT_EQ(cast_of(torch::ones({2, 2})), "CPUFloatType");
}

TEST_F(Autocast, AC06_ExceptionsRestoreEverything) {
  try {
    const Region outer(at::kCPU, {.dtype = at::kHalf, .cache_enabled = false});
    const Region inner(at::kCPU, {.enabled = false, .cache_enabled = true});
    throw std::runtime_error("body");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(state(), kOutside);
  EXPECT_THROW(Region(at::kMeta), c10::Error);
  EXPECT_THROW(Region(at::kCUDA, {.dtype = at::kFloat}), c10::ValueError);
  EXPECT_EQ(nesting(), 0);
}

TEST_F(Autocast, AC07_CannotBeCopiedOrMoved) {
  static_assert(!std::is_copy_constructible_v<Region> && !std::is_move_constructible_v<Region>);
  static_assert(!std::is_copy_assignable_v<Region> && !std::is_move_assignable_v<Region>);
}

TEST_F(Autocast, AC08_EachThreadHasItsOwnState) {
  const Region region(at::kCPU, {.dtype = at::kHalf, .cache_enabled = false});
  State seen{}, inside{};
  std::thread([&] {
    seen = state();
    const Region own(at::kCPU);
    inside = state();
  }).join();
  EXPECT_EQ(seen, kOutside);
  EXPECT_EQ(inside, (State{true, true, at::kBFloat16}));
  EXPECT_EQ(state(), (State{true, false, at::kHalf}));
}

TEST_F(Autocast, AC09_DisabledRegionsSetTheDtypeToo) {
  const Region region(at::kCPU, {.dtype = at::kHalf, .enabled = false});
  EXPECT_EQ(state(), (State{false, true, at::kHalf}));
}

TEST_F(Autocast, AC10_AC12_CastsOnlyRealFloatsBelowFloat64) {
  const Region region(at::kCPU);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    EXPECT_EQ(cast_of(torch::ones({2, 2}, dtype)), "CPUBFloat16Type") << dtype;
  }
  EXPECT_EQ(cast_of(torch::ones({2, 2}, at::kDouble)), "CPUDoubleType");
  EXPECT_EQ(cast_of(torch::ones({2, 2}, at::kInt)), "CPUIntType");
  EXPECT_EQ(cast_of(torch::ones({2, 2}, at::kComplexFloat)), "CPUComplexFloatType");
  const auto bce = at::binary_cross_entropy(torch::rand({3}), torch::rand({3}));  // allowed on the CPU
  EXPECT_EQ(bce.scalar_type(), at::kFloat);
}

TEST_F(Autocast, AC13_WhatHasTheDtypeAlreadyIsNotCopied) {
  const Region region(at::kCPU);
  const auto low = torch::randn({4, 4}, at::kBFloat16).requires_grad_();
  EXPECT_TRUE(at::autocast::cached_cast(at::kBFloat16, low, at::kCPU).is_same(low));
  // There is no cast between the product and the leaf.
  EXPECT_EQ(at::mm(low, torch::eye(4)).grad_fn()->next_edge(0).function->name(),
            "torch::autograd::AccumulateGrad");
}

TEST_F(Autocast, AC15_ACallersOutputDtypeWinsAndIneligibleInputsStayAsTheyAre) {
  const Region region(at::kCPU);
  const auto low = torch::rand({4}, at::kBFloat16);
  EXPECT_EQ(at::prod(low).scalar_type(), at::kFloat);
  EXPECT_EQ(at::prod(low, at::kDouble).scalar_type(), at::kDouble);
  EXPECT_EQ(at::softmax(low, 0, at::kDouble).scalar_type(), at::kDouble);
  EXPECT_EQ(at::prod(torch::ones({4}, at::kLong)).scalar_type(), at::kLong);
  EXPECT_EQ(at::prod(low.to(at::kDouble)).scalar_type(), at::kDouble);
}

TEST_F(Autocast, AC11_AC14_AC16_WhatIsNotCastRaisesAsWithoutAutocast) {
  const Region region(at::kCPU);
  const auto a = torch::ones({2, 2});
  EXPECT_THROW(at::mm(a, a.to(at::kDouble)), c10::Error);
  auto out = torch::empty({2, 2});
  at::mm_out(out, a, a);
  EXPECT_EQ(out.scalar_type(), at::kFloat);
  EXPECT_THROW(at::cat({a.to(at::kHalf), a.to(at::kHalf)}), c10::Error);
  EXPECT_EQ(at::cat({a, a.to(at::kBFloat16)}).scalar_type(), at::kFloat);
  EXPECT_EQ(at::cat({a.to(at::kBFloat16), a.to(at::kBFloat16)}).scalar_type(), at::kBFloat16);
}

TEST_F(Autocast, AC17_AC18_PromotionAndBatchNormAreUntouched) {
  const Region region(at::kCPU);
  const auto a = torch::ones({2, 3});
  EXPECT_EQ((a + a.to(at::kBFloat16)).scalar_type(), at::kFloat);
  torch::nn::BatchNorm1d norm(3);
  EXPECT_EQ(norm(a).scalar_type(), at::kFloat);
  EXPECT_EQ(norm->running_mean.scalar_type(), at::kFloat);
  EXPECT_EQ(norm->num_batches_tracked.scalar_type(), at::kLong);
}

TEST_F(Autocast, AC21_RecurrentLayers) {
  const bool ours = mantissa::enable_cpu_kernels();
  const auto x = torch::randn({5, 2, 4});
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const Region region(at::kCPU, {.dtype = dtype});
    EXPECT_EQ(std::get<0>(torch::nn::GRU(4, 3)(x)).sizes(), (std::vector<int64_t>{5, 2, 3}));
    EXPECT_EQ(std::get<0>(torch::nn::RNN(4, 3)(x)).sizes(), (std::vector<int64_t>{5, 2, 3}));
    EXPECT_EQ(torch::nn::GRUCell(4, 3)(x[0]).sizes(), (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(std::get<0>(torch::nn::LSTMCell(4, 3)(x[0])).sizes(), (std::vector<int64_t>{2, 3}));
    if (!ours) continue;  // libtorch's own LSTM passes dtypes to oneDNN that oneDNN may not support
    torch::nn::LSTM lstm(4, 3);
    const auto [y, states] = lstm(x);
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_EQ(std::get<1>(states).scalar_type(), dtype);
    y.sum().backward();
    for (const at::Tensor& weight : lstm->parameters()) EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
  }
}

TEST_F(Autocast, AC19_EqualsCastingByHand) {
  const auto x = torch::randn({5, 4}), w = torch::randn({3, 4}), b = torch::randn({3});
  const auto low = [](const at::Tensor& t) { return t.to(at::kBFloat16); };
  const auto by_hand = at::linear(low(x), low(w), low(b));
  const auto loss_by_hand = at::mse_loss(by_hand.to(at::kFloat), torch::zeros({5, 3}));
  const Region region(at::kCPU);
  const auto y = at::linear(x, w, b);
  EXPECT_TRUE(at::equal(y, by_hand));
  EXPECT_TRUE(at::equal(at::mse_loss(y, torch::zeros({5, 3})), loss_by_hand));
}

// A cached cast of a weight is one autograd node, which all its uses share.
at::Tensor cast_node_use(const at::Tensor& w) { return at::mm(w, torch::eye(4)); }

const torch::autograd::Node* cast_node(const at::Tensor& product) {
  return product.grad_fn()->next_edge(0).function.get();
}

TEST_F(Autocast, AC22_AC27_WeightsAreCastOncePerOutermostRegion) {
  const auto w = weight();
  at::Tensor first;
  {
    const Region outer(at::kCPU);
    {
      const Region inner(at::kCPU);
      first = cast_node_use(w);
    }
    EXPECT_EQ(cast_node(first), cast_node(cast_node_use(w)));  // leaving the inner region drops nothing
    const Region uncached(at::kCPU, {.cache_enabled = false});
    EXPECT_NE(cast_node(first), cast_node(cast_node_use(w)));
  }
  const Region again(at::kCPU);
  EXPECT_NE(cast_node(first), cast_node(cast_node_use(w)));  // leaving the outermost one drops them
}

TEST_F(Autocast, AC23_CastsCachedWithoutGradStillCarryGradients) {
  const auto w = weight();
  for (const bool inference : {false, true}) {
    const Region region(at::kCPU);
    if (inference) {
      const c10::InferenceMode guard;
      cast_node_use(w);
    } else {
      const at::NoGradGuard guard;
      cast_node_use(w);
    }
    const auto y = cast_node_use(w);
    ASSERT_TRUE(y.requires_grad());
    y.sum().backward();
    EXPECT_TRUE(w.grad().defined());
    w.mutable_grad().reset();
  }
}

// With libtorch's flags alone, the fp16 product would get the cached bf16 weight and throw.
TEST_F(Autocast, AC24_AnInnerRegionOfAnotherDtypeGetsNoStaleCast) {
  const auto w = weight(), x = torch::randn({4, 4});
  const Region outer(at::kCPU);
  EXPECT_EQ(at::mm(x, w).scalar_type(), at::kBFloat16);
  {
    const Region inner(at::kCPU, {.dtype = at::kHalf});
    EXPECT_EQ(at::mm(x, w).scalar_type(), at::kHalf);
  }
  EXPECT_EQ(at::mm(x, w).scalar_type(), at::kBFloat16);
  {
    const Region off(at::kCPU, {.dtype = at::kHalf, .enabled = false});
    const Region on(at::kCPU);
    EXPECT_EQ(at::mm(x, w).scalar_type(), at::kHalf);
  }
  EXPECT_EQ(at::mm(x, w).scalar_type(), at::kBFloat16);
}

TEST_F(Autocast, AC24_AfterAnExceptionInTheInnerRegion) {
  const auto w = weight(), x = torch::randn({4, 4});
  const Region outer(at::kCPU);
  try {
    const Region inner(at::kCPU, {.dtype = at::kHalf});
    at::mm(x, w);
    throw std::runtime_error("body");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(at::mm(x, w).scalar_type(), at::kBFloat16);
}

/// Uses libtorch's casts and products for the scope, because ours keep no cast of a weight (MixedProducts.*).
class StockProducts {
 public:
  StockProducts() { mantissa::disable_cpu_kernels(); }
  ~StockProducts() {
    if (before_) mantissa::enable_cpu_kernels();
  }
  StockProducts(const StockProducts&) = delete;
  StockProducts& operator=(const StockProducts&) = delete;

 private:
  bool before_ = mantissa::cpu_kernels_enabled();
};

TEST_F(Autocast, AC25_AStepInsideTheRegionIsNotSeen) {
  const StockProducts stock;
  const auto w = torch::ones({2, 2}).requires_grad_(), x = torch::eye(2);
  const Region region(at::kCPU);
  EXPECT_EQ(at::mm(x, w)[0][0].item<float>(), 1.f);
  {
    const at::NoGradGuard no_grad;
    w.fill_(2);
  }
  EXPECT_EQ(at::mm(x, w)[0][0].item<float>(), 1.f)
      << "libtorch changed: update the note on steps in autocast.h";
}

TEST_F(Autocast, AC26_PE12_TheCacheSumsGradientsInTheLowDtype) {
  const StockProducts stock;
  const auto gradient = [](bool cache) {
    const auto w = torch::ones({1, 1}).requires_grad_();
    at::Tensor sum;
    {
      const Region region(at::kCPU, {.cache_enabled = cache});
      // 1 + 2^-9 is no bf16 number, but it is the sum of two gradients that are.
      const auto x = torch::full({1, 1}, 0x1p-9);
      sum = at::mm(torch::ones({1, 1}), w).to(at::kFloat) + at::mm(x, w).to(at::kFloat);
    }
    sum.sum().backward();
    return w.grad().item<float>();
  };
  EXPECT_EQ(gradient(true), 1.f);
  EXPECT_EQ(gradient(false), 1.f + 0x1p-9f);
}

TEST_F(Autocast, AC28_AC29_DisabledRegionsRunInTheDtypesGiven) {
  const auto a = torch::ones({2, 2});
  const Region outer(at::kCPU);
  const auto low = at::mm(a, a);
  {
    const Region off(at::kCPU, {.enabled = false});
    EXPECT_EQ(at::mm(a, a).scalar_type(), at::kFloat);
    EXPECT_THROW(at::mm(low, a), c10::Error);
    EXPECT_EQ(at::mm(low.to(at::kFloat), a).scalar_type(), at::kFloat);
    const Region on(at::kCPU);
    EXPECT_EQ(at::mm(low, a).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(at::mm(low, a).scalar_type(), at::kBFloat16);
}

TEST_F(Autocast, OffHoldsOnEveryDeviceForItsScope) {
  const auto is_on = [](c10::DeviceType device) { return at::autocast::is_autocast_enabled(device); };
  const at::Tensor w = weight();
  at::autocast::set_autocast_enabled(at::kCUDA, true);  // also on a machine without a GPU
  {
    const Region outer(at::kCPU);
    {
      const mantissa::AutocastOff off;
      EXPECT_FALSE(is_on(at::kCPU));
      EXPECT_FALSE(is_on(at::kCUDA));
      EXPECT_EQ(w.mm(w).scalar_type(), at::kFloat);
    }
    EXPECT_TRUE(is_on(at::kCPU));
    EXPECT_TRUE(is_on(at::kCUDA));
    EXPECT_EQ(w.mm(w).scalar_type(), at::kBFloat16);
  }
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  { const mantissa::AutocastOff off; }
  EXPECT_FALSE(is_on(at::kCPU)) << "it was off before";
}

TEST_F(Autocast, AC30_AFunctionsCallsEnterAndLeaveTheRegion) {
  const auto a = torch::ones({2, 2});
  int calls = 0;
  const auto product = mantissa::autocast_function(
      [&](const at::Tensor& x, std::unique_ptr<int> throws) {
        ++calls;
        if (throws) throw std::runtime_error("body");
        return at::mm(x, x);
      },
      at::kCPU, {.dtype = at::kHalf});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(product(a, nullptr).scalar_type(), at::kHalf);
    EXPECT_EQ(state(), kOutside);
  }
  EXPECT_THROW(product(a, std::make_unique<int>()), std::runtime_error);
  EXPECT_EQ(calls, 3);
}

TEST_F(Autocast, CurrentAutocastCarriesTheStateToAnotherThread) {
  const Region region(at::kCPU, {.dtype = at::kHalf, .cache_enabled = false});
  const mantissa::AutocastOptions options = mantissa::current_autocast(at::kCPU);
  State inside{};
  std::thread([&] {
    const Region own(at::kCPU, options);
    inside = state();
  }).join();
  EXPECT_EQ(inside, state());
  EXPECT_THROW(mantissa::current_autocast(at::kMeta), c10::Error);
}

TEST_F(Autocast, AC31_AC32_BackwardGivesFloat32GradientsOutsideAndInside) {
  for (const bool inside : {false, true}) {
    torch::nn::Linear model(4, 2);
    at::Tensor loss;
    {
      const Region region(at::kCPU);
      loss = model(torch::randn({3, 4})).to(at::kFloat).pow(2).mean();
      if (inside) loss.backward();
    }
    if (!inside) loss.backward();
    EXPECT_EQ(model->weight.scalar_type(), at::kFloat);
    EXPECT_EQ(model->weight.grad().scalar_type(), at::kFloat);
    EXPECT_GT(model->weight.grad().abs().max().item<float>(), 0.f);
  }
}

TEST_F(Autocast, AC39_NoCastOutlivesTheOutermostRegion) {
  const auto w = weight();
  c10::weak_intrusive_ptr<c10::TensorImpl> cast(c10::intrusive_ptr<c10::TensorImpl>{});
  {
    const Region region(at::kCPU);
    cast_node_use(w);
    const auto cached = at::autocast::cached_cast(at::kBFloat16, w, at::kCPU);
    cast = c10::weak_intrusive_ptr<c10::TensorImpl>(cached.getIntrusivePtr());
    EXPECT_FALSE(cast.expired());
  }
  EXPECT_TRUE(cast.expired());
}

TEST_F(Autocast, TrainsOneStep) {
  torch::nn::Linear model(4, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto x = torch::randn({8, 4}), y = torch::randn({8, 1});
  const auto loss_of_step = [&] {
    at::Tensor loss;
    {
      const Region region(at::kCPU);
      loss = torch::mse_loss(model(x), y);
    }
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    return loss.item<float>();
  };
  const float before = loss_of_step();
  EXPECT_GT(before, loss_of_step());
}

TEST_F(Autocast, AC03_AC20_OnCuda) {
  if (mantissa::cuda_device_count() == 0) GTEST_SKIP() << mantissa::why_no_cuda();
  const auto a = torch::ones({2, 2}, at::kCUDA);
  const Region region(at::kCUDA);
  EXPECT_TRUE(region.enabled());
  EXPECT_EQ(at::mm(a, a).scalar_type(), at::kHalf);
  EXPECT_EQ(at::mm(a.cpu(), a.cpu()).scalar_type(), at::kFloat);
  mantissa::expect_error([&] { at::binary_cross_entropy(a * 0.5, a); }, "unsafe to autocast");
  const Region inner(at::kCUDA, {.dtype = at::kBFloat16});
  EXPECT_EQ(at::mm(a, a).scalar_type(), at::kBFloat16);
}

// In a process of its own: another test may have put the kernels in place.
TEST(AutocastDeathTest, ARegionOnTheCpuTakesTheKernels) {
  const char* switched = std::getenv("MANTISSA_CPU_KERNELS");
  if (switched != nullptr && std::string(switched) == "0") GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto enabled_by = [](bool enabled) {
    if (mantissa::cpu_kernels_enabled()) std::_Exit(2);
    const Region region(at::kCPU, {.enabled = enabled});
    std::_Exit(mantissa::cpu_kernels_enabled() ? 1 : 0);
  };
  EXPECT_EXIT(enabled_by(true), testing::ExitedWithCode(1), "");
  EXPECT_EXIT(enabled_by(false), testing::ExitedWithCode(0), "");
}

}  // namespace
