// At which value each refusal of this room begins, and what it says. Each part of a condition has a value that only this
// part refuses.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "mantissa/amp/autocast.h"
#include "mantissa/amp/clip_grad.h"
#include "mantissa/amp/clip_grad_internal.h"
#include "mantissa/amp/grad_norm.h"
#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/grad_scaler_state.h"
#include "mantissa/amp/gradient_hooks.h"
#include "mantissa/amp/iteration_tracker.h"
#include "mantissa/amp/keep_in_fp32.h"
#include "mantissa/amp/step_result.h"
#include "mantissa/amp/test_support_internal.h"

namespace mantissa::refusals_test {
namespace {

using testing::HasSubstr;
using torch::optim::SGD;

constexpr double kLargest = std::numeric_limits<float>::max();
constexpr double kQuietNan = std::numeric_limits<double>::quiet_NaN();

TEST(Refusals, OfClippingBeginBelow0) {
  const at::Tensor p = with_grad({3.F, 4.F});
  EXPECT_THAT(error_of([&] { clip_grad_norm_(p, -1e-9); }), HasSubstr("max_norm must be at least 0"));
  EXPECT_THAT(error_of([&] { clip_grad_norm_(p, kQuietNan); }), HasSubstr("max_norm must be at least 0"));
  EXPECT_THAT(error_of([&] { clip_grad_norm_(p, 1.0, kQuietNan); }),
              HasSubstr("norm_type is nan; use 1, 2, inf or another number"));
  EXPECT_THAT(error_of([&] { clip_grad_value_(p, -1e-9); }), HasSubstr("clip_value must be at least 0"));
  EXPECT_THAT(error_of([&] { clip_grad_value_(p, kQuietNan); }), HasSubstr("clip_value must be at least 0"));
  EXPECT_EQ(p.grad()[1].item<float>(), 4.F) << "a refused call changes nothing";
  EXPECT_EQ(error_of([&] { clip_grad_value_(p, 0); }), "no error");
  EXPECT_EQ(error_of([&] { clip_grad_norm_(p, 0); }), "no error");
  for (const double norm_type : {0.0, -1.0, kQuietNan})
    EXPECT_THAT(error_of([&] {
                  grad_norm({{"p", p}}, norm_type);
                }),
                HasSubstr("grad_norm: norm_type must be above 0 or inf, got "));
  EXPECT_EQ(grad_norm({{"p", p}}, HUGE_VAL).count("grad_inf_norm_total"), 1U);
}

TEST(Refusals, OfClippingUnlessThereWasAnOverflowAreTheSame) {
  const at::Tensor p = with_grad({3.F, 4.F}), clean = torch::zeros({});
  EXPECT_THAT(error_of([&] { clip_grad_norm_unless_(clean, p, -1e-9); }),
              HasSubstr("max_norm must be at least 0"));
  EXPECT_THAT(error_of([&] { clip_grad_value_unless_(clean, p, -1e-9); }),
              HasSubstr("clip_value must be at least 0"));
  EXPECT_EQ(p.grad()[1].item<float>(), 4.F) << "a refused call changes nothing";
  EXPECT_EQ(error_of([&] { clip_grad_norm_unless_(clean, p, 0); }), "no error");
  const at::Tensor embedding = parameter(torch::ones({2}), sparse({1.F, 2.F}));
  EXPECT_THAT(error_of([&] { clip_grad_norm_unless_(clean, embedding, 1); }),
              HasSubstr("has a sparse gradient"));
  EXPECT_THAT(error_of([&] { clip_grad_value_unless_(clean, embedding, 1); }),
              HasSubstr("has a sparse gradient"));
}

TEST(Refusals, OfAScalersOptionsBeginWhereTheySay) {
  const auto error = [](const GradScalerOptions& options) {
    return error_of([&] { GradScaler(at::kCPU, options); });
  };
  for (const double scale : {0.0, -1.0, 1e39, kQuietNan})
    EXPECT_THAT(error({.init_scale = scale}), HasSubstr("init_scale must be positive and fit in float32"));
  EXPECT_EQ(error({.init_scale = kLargest}), "no error");
  EXPECT_THAT(error({.growth_interval = 0}), HasSubstr("growth_interval must be at least 1; got 0"));
  EXPECT_EQ(error({.growth_interval = 1}), "no error");
  EXPECT_EQ(error({.backoff_factor = 0}), "no error");
  EXPECT_EQ(error({.warn_after_skips = 0}), "no error");
  EXPECT_EQ(error({.init_scale = 8, .min_scale = 8}), "no error");
  EXPECT_EQ(error({.init_scale = 8, .max_scale = 8}), "no error");
  EXPECT_EQ(error({.init_scale = 0, .enabled = false}), "no error") << "a disabled scaler has no scale";
}

TEST(Refusals, OfANewScaleBeginWhereTheySay) {
  GradScaler scaler = used_scaler();
  for (const double scale : {-1e-9, 1e39, kQuietNan})
    EXPECT_THAT(error_of([&] { scaler.update(scale); }),
                HasSubstr("new_scale must be at least 0 and finite in float32"));
  EXPECT_EQ(error_of([&] { scaler.update(kLargest); }), "no error");
  EXPECT_EQ(error_of([&] { scaler.update(0.0); }), "no error");
  const at::Tensor with_gradient = torch::ones({}).requires_grad_();
  for (const at::Tensor& scale : {at::Tensor(), torch::ones({2}), with_gradient, torch::ones({}, at::kMeta)})
    EXPECT_THAT(error_of([&] { scaler.update(scale); }),
                HasSubstr("new_scale should be a 1-element tensor on cpu with requires_grad=False"));
  EXPECT_EQ(error_of([&] { scaler.update(torch::full({1}, 8.F)); }), "no error");
  EXPECT_EQ(scaler.get_scale(), 8);
  EXPECT_THAT(error_of([&] { scaler.scale(at::Tensor()); }), HasSubstr("the tensor is undefined; pass the"));
}

TEST(Refusals, OfASavedStateBeginWhereTheySay) {
  const auto error = [](const std::string& key, const at::Scalar& value, double min_scale = 1) {
    GradScaler scaler = used_scaler({.min_scale = min_scale});
    GradScalerState state = scaler.state_dict();
    state[key] = value;
    return error_of([&] { scaler.load_state_dict(state); });
  };
  EXPECT_THAT(error("scale", 0.0), HasSubstr("'scale' must be positive; got 0"));
  EXPECT_EQ(error("scale", 0.0, /*min_scale=*/0), "no error");
  EXPECT_THAT(error("scale", -1.0, /*min_scale=*/0), HasSubstr("'scale' must be positive"));
  EXPECT_THAT(error("scale", 1e39), HasSubstr("'scale' must fit in float32"));
  EXPECT_EQ(error("scale", kLargest), "no error");
  EXPECT_THAT(error("scale", HUGE_VAL), HasSubstr("'scale' must be finite"));
  EXPECT_THAT(error("scale", true), HasSubstr("'scale' must be a number"));
  EXPECT_EQ(error("scale", 8), "no error") << "a whole number is a number";
  EXPECT_THAT(error("growth_interval", 0), HasSubstr("'growth_interval' must be an integer from 1"));
  EXPECT_THAT(error("growth_interval", 1.5), HasSubstr("'growth_interval' must be an integer"));
  EXPECT_EQ(error("growth_interval", 1.0), "no error");
  EXPECT_EQ(error("growth_interval", int64_t{1} << 53), "no error");
  EXPECT_THAT(error("growth_interval", 0x1p54), HasSubstr("'growth_interval' must be an integer from 1"));
  EXPECT_THAT(error("_growth_tracker", -1), HasSubstr("'_growth_tracker' must be an integer from 0"));
  EXPECT_EQ(error("_growth_tracker", 0), "no error");
  EXPECT_EQ(error("_growth_tracker", std::numeric_limits<int>::max()), "no error");
  EXPECT_THAT(error("_growth_tracker", 0x1p31), HasSubstr("'_growth_tracker' must be an integer from 0"));
  EXPECT_THAT(error("growth_factor", 1.0), HasSubstr("the growth factor must be > 1.0"));
  EXPECT_THAT(error("backoff_factor", 1.0), HasSubstr("the backoff factor must be < 1.0"));
}

TEST(Refusals, OfTensorsInTheStateOfAScaler) {
  for (const at::Tensor& wrong :
       {at::Tensor(), torch::ones({2}), torch::ones({}, at::kComplexFloat), torch::ones({}, at::kBool)})
    EXPECT_THAT(error_of([&] {
                  scaler_state_from_tensors({{"scale", wrong}});
                }),
                HasSubstr("scaler_state_from_tensors: 'scale' must be one real number; got "));
  EXPECT_THAT(error_of([] {
                scaler_state_from_tensors({{"scale", torch::ones({2})}});
              }),
              HasSubstr(" of shape [2];"));
  EXPECT_EQ(scaler_state_from_tensors({{"scale", torch::full({1}, 2.0)}}).at("scale").toDouble(), 2.0);
}

TEST(Refusals, OfAGradientStageThatNoScalerReturned) {
  SGD optimizer({with_grad({1.F})}, 0.1);
  TrackedScaler scaler;
  scaler.scale(torch::zeros({}));
  const auto error = [&](GradientStage stage, const at::Tensor& clip_divisor, const at::Tensor& scale) {
    return error_of([&] { scaler.restore_gradient_stage(optimizer, stage, clip_divisor, scale); });
  };
  const at::Tensor one = torch::ones({}), two = torch::ones({2});
  EXPECT_THAT(error(GradientStage::kScaled, {}, two), HasSubstr("is one number; got 2; pass what scale_on"));
  EXPECT_THAT(error(GradientStage::kChecked, two, one), HasSubstr("a clip_divisor is one number"));
  EXPECT_THAT(error(GradientStage::kScaled, one, one), HasSubstr("a clip_divisor is one number"));
  EXPECT_EQ(error(GradientStage::kScaled, {}, torch::ones({1})), "no error");
  EXPECT_EQ(error(GradientStage::kChecked, torch::ones({1}), one), "no error");
}

TEST(Refusals, OfAHookOnATensorThatGathersNoGradient) {
  const auto error = [](const at::Tensor& tensor) {
    return error_of([&] { GradientHook(tensor, GradientHookOrder::kReduce, [](const at::Tensor&) {}); });
  };
  const at::Tensor leaf = torch::ones({2}).requires_grad_();
  EXPECT_THAT(error({}), HasSubstr("gradients are accumulated into leaves"));
  EXPECT_THAT(error(leaf * 2), HasSubstr("gradients are accumulated into leaves"));
  EXPECT_EQ(error(leaf), "no error");
}

TEST(Refusals, OfAFlagThatIsNoFlag) {
  for (const at::Tensor& flag : {at::Tensor(), torch::ones({2}), torch::ones({0})})
    EXPECT_THAT(error_of([&] { StepResult result(flag, nullptr); }), HasSubstr("one element"));
  EXPECT_TRUE(StepResult(torch::ones({1}), nullptr).skipped());
  EXPECT_FALSE(StepResult(torch::zeros({1}), nullptr).skipped());
  EXPECT_TRUE(StepResult(torch::ones({}, at::kDouble), nullptr).skipped()) << "of another dtype";
}

TEST(Refusals, OfNamesThatNoWeightHas) {
  torch::nn::Sequential net;
  net->push_back("first", torch::nn::Linear(2, 2));
  net->push_back("second", torch::nn::ReLU());
  const auto error = [&](const std::string& pattern) {
    const std::string text = error_of([&] { keep_in_fp32(*net, pattern); });
    undo_keep_in_fp32(*net);
    return text;
  };
  for (const char* good :
       {"first", "f*", "*t", "?irst", "first.*", "first.weight", "*", "f*r*t", "first.?ias"})
    EXPECT_EQ(error(good), "no error") << good;
  for (const char* wrong : {"", "?first", "firs", "first.", "second", "first?", "f?t"})
    EXPECT_THAT(error(wrong), HasSubstr("is the name of no weight of ")) << wrong;
  EXPECT_THAT(error("frist"), HasSubstr("and of no module with weights; did you mean 'first'?"));
  torch::nn::ReLU empty;
  EXPECT_THAT(error_of([&] { keep_in_fp32(*empty); }), HasSubstr("has no floating-point weight"));
}

TEST(Refusals, OfDevicesThatHaveNoAutocast) {
  EXPECT_THAT(error_of([] { Autocast region(at::kMeta); }), HasSubstr("unsupported autocast device type"));
  EXPECT_THAT(error_of([] { Autocast region(at::kCUDA, {.dtype = at::kFloat}); }),
              HasSubstr("CUDA autocast computes in Half or BFloat16"));
}

}  // namespace
}  // namespace mantissa::refusals_test
