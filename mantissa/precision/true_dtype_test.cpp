#include "mantissa/precision/true_dtype.h"

#include <cstdlib>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/optim/adamw.h"
#include "mantissa/optim/fused_adagrad.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/optim/optimizers_8bit.h"
#include "mantissa/optim/steps_16bit_weights.h"

namespace mantissa::true_dtype_test {
namespace {

struct Net : torch::nn::Module {
  Net() {
    fc = register_module("fc", torch::nn::Linear(4, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    mask = register_buffer("mask", torch::ones(4, at::kBool));
    phase = register_buffer("phase", torch::ones(4, at::kComplexFloat));
  }
  torch::nn::Linear fc{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor mask, phase;
};

TEST(TrueDtype, RefusesOtherDtypes) {
  EXPECT_THROW(TrueDtype(at::kFloat), c10::ValueError);
  EXPECT_THROW(TrueDtype(at::kInt), c10::ValueError);
}

TEST(TrueDtype, RefusesOptionsThatTheDtypeCannotUse) {
  EXPECT_THROW(TrueDtype(at::kDouble, {.keep_batchnorm_fp32 = true}), c10::ValueError);
  EXPECT_THROW(TrueDtype(at::kDouble, {.master_weights = true}), c10::ValueError);
  EXPECT_THROW(TrueDtype(at::kBFloat16, {.scaler = std::make_unique<GradScaler>(at::kCPU)}), c10::ValueError);
}

TEST(TrueDtype, KeepsBatchNormInFloat32WhereAsked) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    Net net;
    TrueDtype mode(dtype, {.keep_batchnorm_fp32 = true});
    mode.convert_module(net);
    EXPECT_EQ(net.fc->weight.scalar_type(), dtype);
    EXPECT_EQ(net.norm->weight.scalar_type(), at::kFloat);
    EXPECT_EQ(net.norm->running_var.scalar_type(), at::kFloat);
    const at::Tensor y = net.norm(net.fc(mode.convert_input(torch::randn({8, 4}))));
    EXPECT_EQ(y.scalar_type(), dtype);
    y.sum().backward();
    EXPECT_EQ(net.norm->weight.grad().scalar_type(), at::kFloat);
  }
}

TEST(TrueDtype, WarnsAboutAnEpsThatFp16LosesWhateverTheOptimizer) {
  const std::map<std::string,
                 std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>>
      makers{
          {"Adam", [](auto p) { return std::make_unique<torch::optim::Adam>(std::move(p)); }},
          {"AdamW", [](auto p) { return std::make_unique<AdamW>(std::move(p)); }},
          {"FusedAdam", [](auto p) { return std::make_unique<FusedAdam>(std::move(p)); }},
          {"Adagrad", [](auto p) { return std::make_unique<torch::optim::Adagrad>(std::move(p)); }},
          {"FusedAdagrad", [](auto p) { return std::make_unique<FusedAdagrad>(std::move(p)); }},
          {"RMSprop", [](auto p) { return std::make_unique<torch::optim::RMSprop>(std::move(p)); }},
      };
  for (const auto& [name, make] : makers) {
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
      const Warnings warnings;
      Net net;
      TrueDtype mode(dtype);
      mode.convert_module(net);
      const auto first = make(net.parameters()), second = make(net.parameters());
      mode.setup_optimizer(*first);
      mode.setup_optimizer(*second);
      mode.optimizer_step(*first);
      if (dtype == at::kBFloat16) {
        EXPECT_THAT(warnings.texts, testing::IsEmpty()) << name;
      } else {
        EXPECT_THAT(warnings.texts, testing::ElementsAre(testing::HasSubstr("set eps to 1e-4"))) << name;
      }
    }
  }
}

TEST(TrueDtype, AnEpsThatFp16LosesWarnsInALoopWithoutSetupOptimizer) {
  const Warnings warnings;
  Net net;
  TrueDtype mode(at::kHalf);
  mode.convert_module(net);
  torch::optim::Adam adam(net.parameters());
  mode.optimizer_step(adam);
  EXPECT_THAT(warnings.texts, testing::ElementsAre(testing::HasSubstr("set eps to 1e-4")));
}

TEST(TrueDtype, AnEpsDoesNotHarmWhatIsWiderOrFrozen) {
  const Warnings warnings;
  torch::optim::Adam wide(std::vector{torch::ones(1).requires_grad_()}),
      frozen(std::vector{torch::ones(1, at::kHalf)});
  for (auto* adam : {&wide, &frozen}) TrueDtype(at::kHalf).setup_optimizer(*adam);
  EXPECT_THAT(warnings.texts, testing::IsEmpty());
}

TEST(TrueDtype, AnEpsThatFp16HoldsDoesNotWarn) {
  const Warnings warnings;
  Net net;
  TrueDtype mode(at::kHalf);
  mode.convert_module(net);
  torch::optim::Adam held(net.parameters(), torch::optim::AdamOptions().eps(0x1p-14));
  mode.setup_optimizer(held);
  EXPECT_THAT(warnings.texts, testing::IsEmpty()) << "the smallest normal number of fp16";
}

TEST(TrueDtype, AnEpsThatFp16LosesWarnsOnceForAllModules) {
  const Warnings warnings;
  Net nets[2];
  TrueDtype mode(at::kHalf);
  for (Net& net : nets) {
    mode.convert_module(net);
    torch::optim::Adam adam(net.parameters());
    mode.setup_optimizer(adam);
  }
  EXPECT_EQ(warnings.texts.size(), 1);
}

TEST(TrueDtype, AModeOfAnotherDtypeSaysNothingOfFp16) {
  const Warnings warnings;
  torch::optim::Adam adam(std::vector{torch::ones(1, at::kHalf).requires_grad_()});
  TrueDtype(at::kBFloat16).setup_optimizer(adam);
  EXPECT_THAT(warnings.texts, testing::IsEmpty());
}

// In a process of its own: another test may have put the kernels in place.
TEST(TrueDtypeDeathTest, SixteenBitModesTakeTheKernelsForTheirDtype) {
  const char* switched = std::getenv("MANTISSA_CPU_KERNELS");
  if (switched != nullptr && std::string(switched) == "0") GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto enabled_by = [](at::ScalarType dtype) {
    if (cpu_kernels_enabled()) std::_Exit(2);
    const TrueDtype mode(dtype);
    std::_Exit(cpu_kernels_enabled() ? 1 : 0);
  };
  EXPECT_EXIT(enabled_by(at::kHalf), testing::ExitedWithCode(1), "");
  EXPECT_EXIT(enabled_by(at::kBFloat16), testing::ExitedWithCode(1), "");
  EXPECT_EXIT(enabled_by(at::kDouble), testing::ExitedWithCode(0), "");
}

/// A user's optimizer that computes its updates in float32.
class WideAdam final : public torch::optim::Adam, public Steps16BitWeights {
 public:
  using Adam::Adam;
  bool updates_in_float32() const override { return true; }
};

TEST(TrueDtype, DoesNotWarnAboutAnOptimizerThatFp16DoesNotHarm) {
  const Warnings warnings;
  Net net;
  TrueDtype mode(at::kHalf);
  mode.convert_module(net);
  const std::vector<at::Tensor> all = net.parameters();
  std::vector<std::unique_ptr<torch::optim::Optimizer>> harmless;
  harmless.push_back(std::make_unique<torch::optim::SGD>(all, 0.1));
  harmless.push_back(std::make_unique<torch::optim::Adagrad>(all, torch::optim::AdagradOptions().eps(1e-4)));
  harmless.push_back(
      std::make_unique<FusedAdam>(all, AdamOptions(), FusedOptions{.stochastic_rounding = true}));
  harmless.push_back(std::make_unique<Adam8bit>(all));
  harmless.push_back(std::make_unique<WideAdam>(all));
  harmless.push_back(std::make_unique<torch::optim::Adam>(std::vector{torch::ones(1)}));
  for (const auto& optimizer : harmless) mode.setup_optimizer(*optimizer);
  TrueDtype with_masters(at::kHalf, {.master_weights = true});
  torch::optim::Adam adam(all);
  with_masters.setup_optimizer(adam);
  with_masters.optimizer_step(adam);
  EXPECT_THAT(warnings.texts, testing::IsEmpty());
}

TEST(TrueDtype, PE23_ConvertsFloatingPointAndNothingElse) {
  for (const auto dtype : {at::kDouble, at::kHalf, at::kBFloat16}) {
    Net net;
    TrueDtype(dtype).convert_module(net);
    EXPECT_EQ(net.fc->weight.scalar_type(), dtype);
    EXPECT_EQ(net.norm->running_mean.scalar_type(), dtype);
    EXPECT_EQ(net.norm->num_batches_tracked.scalar_type(), at::kLong);
    EXPECT_EQ(net.mask.scalar_type(), at::kBool);
    EXPECT_EQ(net.phase.scalar_type(), at::kComplexFloat);
  }
}

TEST(TrueDtype, OptimizersAliasesAndGradientsMadeEarlierFollow) {
  Net net;
  const at::Tensor alias = net.fc->weight;
  torch::optim::SGD optimizer(net.parameters(), 0.1);
  net.fc(torch::ones({2, 4})).sum().backward();
  TrueDtype(at::kDouble).convert_module(net);
  EXPECT_TRUE(alias.is_same(net.fc->weight));
  EXPECT_EQ(alias.grad().scalar_type(), at::kDouble);
  const at::Tensor before = alias.detach().clone();
  optimizer.step();
  EXPECT_TRUE(alias.detach().equal(before - 0.1 * alias.grad()));
}

TEST(TrueDtype, IN03_TheDefaultDtypeComesBackWhenTheBodyThrows) {
  const TrueDtype precision(at::kHalf);
  EXPECT_THROW(
      {
        const Scope scope = precision.forward_context();
        EXPECT_EQ(torch::ones(1).scalar_type(), at::kHalf);
        throw std::runtime_error("body");
      },
      std::runtime_error);
  EXPECT_EQ(torch::ones(1).scalar_type(), at::kFloat);
}

TEST(TrueDtype, IN08_InputsAndOutputs) {
  const TrueDtype precision(at::kDouble);
  EXPECT_EQ(precision.convert_input(torch::ones(1, at::kHalf)).scalar_type(), at::kDouble);
  for (const auto dtype : {at::kLong, at::kBool, at::kComplexFloat})
    EXPECT_EQ(precision.convert_input(torch::ones(1, dtype)).scalar_type(), dtype);
  EXPECT_EQ(precision.convert_output(torch::ones(1, at::kDouble)).scalar_type(), at::kFloat);
  const std::vector<at::Tensor> batch{torch::ones(1), torch::ones(1, at::kLong)};
  EXPECT_EQ(precision.convert_inputs(batch)[0].scalar_type(), at::kDouble);
  EXPECT_EQ(precision.convert_inputs(batch)[1].scalar_type(), at::kLong);
}

TEST(TrueDtype, IN01_ComplexTensorsOfTheStepFollowTheDefault) {
  const TrueDtype precision(at::kDouble);
  const Scope scope = precision.forward_context();
  EXPECT_EQ(torch::get_default_complex_dtype(), caffe2::TypeMeta::Make<c10::complex<double>>());
}

TEST(TrueDtype, FP02_SmallUpdatesAreLostInSixteenBits) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    at::Tensor weight = torch::ones(1, dtype);
    weight -= 1e-4;
    EXPECT_EQ(weight.item<float>(), 1.0F);
  }
}

}  // namespace
}  // namespace mantissa::true_dtype_test
