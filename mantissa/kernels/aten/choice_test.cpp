#include "mantissa/kernels/aten/choice.h"

#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/kernels/aten/calibration_internal.h"
#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::choice_test {
namespace {

using testing::HasSubstr;

/// The tests of this program use our own kernels, even if libtorch's are faster on this CPU.
void pin_our_own() { pin_cpu_kernels(tier_name(cpu_tier())); }

class OwnKernels final : public testing::Environment {
 public:
  void SetUp() override { pin_our_own(); }
};
const testing::Environment* const kOwnKernels = testing::AddGlobalTestEnvironment(new OwnKernels);

class Choice : public testing::Test {
 protected:
  void SetUp() override { forget_cpu_kernel_choices(); }
  void TearDown() override { pin_our_own(); }

  static Kernel product(kernels::Element element) { return kernel_for(KernelFamily::kProduct, element); }
  static constexpr kernels::Element kBf16 = kernels::Element::kBFloat16, kFp16 = kernels::Element::kFloat16;
};

TEST_F(Choice, ConvolutionsHaveFamiliesBySizeAndLayout) {
  const auto family = [](const ConvolutionKind& kind) { return family_of(ConvolutionPass::kForward, kind); };
  ConvolutionKind dense{.channels = 8, .outputs = 8, .products = (1 << 25) - 1};
  EXPECT_EQ(family(dense), KernelFamily::kSmallConvolution);
  dense.products += 1;
  EXPECT_EQ(family(dense), KernelFamily::kConvolution);
  dense = {.channels = 8, .outputs = 8, .products = 1 << 23, .channels_last = true};
  EXPECT_EQ(family(dense), KernelFamily::kConvolution);

  ConvolutionKind depthwise{.groups = 64, .products = (1 << 22) - 1, .channels_last = true};
  EXPECT_EQ(family(depthwise), KernelFamily::kDepthwiseLast);
  depthwise.products += 1;
  EXPECT_EQ(family(depthwise), KernelFamily::kLargeDepthwiseLast);
  EXPECT_EQ(family_of(ConvolutionPass::kByWeight, depthwise), KernelFamily::kLargeDepthwiseLastByWeight);
  depthwise.strided = true;
  EXPECT_EQ(family(depthwise), KernelFamily::kStridedDepthwiseLast);
  depthwise.channels_last = depthwise.strided = false;
  EXPECT_EQ(family(depthwise), KernelFamily::kDepthwise);
}

TEST_F(Choice, ProductsHaveFamiliesBySize) {
  const auto family = [](int64_t m, int64_t n, int64_t k, int64_t batch = 1) {
    kernels::Gemm g;
    g.m = m, g.n = n, g.k = k, g.batch = batch;
    return family_of(g);
  };
  EXPECT_EQ(family(96, 96, 95), KernelFamily::kSmallProduct);
  EXPECT_EQ(family(96, 96, 96), KernelFamily::kProduct);
  EXPECT_EQ(family(256, 256, 255), KernelFamily::kProduct);
  EXPECT_EQ(family(256, 256, 256), KernelFamily::kLargeProduct);
  EXPECT_EQ(family(256, 256, 127, 2), KernelFamily::kBatchedProduct);
  EXPECT_EQ(family(256, 256, 128, 2), KernelFamily::kLargeBatchedProduct);
  EXPECT_EQ(family(3, 8192, 8192), KernelFamily::kFewRows);
}

TEST(SmallCalls, OnlyWhatGrowsWithTheWorkIsTooSlow) {
  const auto can_win = [](double libtorch, double four_times) {
    const auto measure = [=] {
      EXPECT_GT(four_times, 0) << "is not needed";
      return four_times * 1e-6;
    };
    return can_win_typical_call({.ours = 20e-6,
                                 .libtorch = libtorch * 1e-6,
                                 .libtorch_float32 = 10e-6,
                                 .libtorch_four_times = measure});
  };
  EXPECT_TRUE(can_win(39, 0)) << "less than twice our time";
  EXPECT_TRUE(can_win(60, 70)) << "oneDNN with AMX, which has to start";
  EXPECT_TRUE(can_win(190, 200)) << "the same on a busy machine";
  EXPECT_FALSE(can_win(205, 820)) << "a CPU without 16-bit products";
  EXPECT_FALSE(can_win(190, 580));
  EXPECT_FALSE(can_win(5000, 0)) << "nothing takes so long to start";
  EXPECT_FALSE(can_win(std::numeric_limits<double>::infinity(), 0)) << "refused";
}

TEST_F(Choice, AttentionsHaveFamiliesBySize) {
  EXPECT_EQ(attention_family_of((1 << 26) - 1), KernelFamily::kAttention);
  EXPECT_EQ(attention_family_of(1 << 26), KernelFamily::kLargeAttention);
}

TEST_F(Choice, APatternMayBeginWithAStar) {
  pin_cpu_kernels("generic,bf16.*product=libtorch");
  for (const KernelFamily family :
       {KernelFamily::kLargeProduct, KernelFamily::kProduct, KernelFamily::kSmallProduct,
        KernelFamily::kBatchedProduct, KernelFamily::kLargeBatchedProduct})
    EXPECT_EQ(kernel_for(family, kBf16), kLibtorchs);
  EXPECT_EQ(kernel_for(KernelFamily::kFewRows, kBf16), (Kernel{CpuTier::kGeneric}));
}

TEST_F(Choice, PinsFamilies) {
  pin_cpu_kernels("generic,fp16.conv*=libtorch,product=libtorch,bf16.product=generic");
  const Kernel generic{CpuTier::kGeneric};
  EXPECT_EQ(kernel_for(KernelFamily::kGelu, kBf16), generic);
  EXPECT_EQ(kernel_for(KernelFamily::kConvolution, kBf16), generic);
  EXPECT_EQ(kernel_for(KernelFamily::kConvolution, kFp16), kLibtorchs);
  EXPECT_EQ(kernel_for(KernelFamily::kConvolutionByWeight, kFp16), kLibtorchs);
  EXPECT_EQ(kernel_for(KernelFamily::kDepthwise, kFp16), generic);
  EXPECT_EQ(product(kFp16), kLibtorchs);
  EXPECT_EQ(product(kBf16), generic);
  EXPECT_EQ(kernel_for(KernelFamily::kUnscale, kernels::Element::kFloat32), generic);
  EXPECT_THAT(cpu_kernel_choices(), HasSubstr("bf16.product=generic"));
  EXPECT_THAT(cpu_kernel_choices(), HasSubstr("fp16.convolution=libtorch"));
  pin_cpu_kernels("");
  EXPECT_EQ(product(kBf16), generic) << "nothing changes";
}

TEST_F(Choice, APinOfATierMeansItsBestBuilds) {
  const std::string tier = tier_name(cpu_tier());
  pin_cpu_kernels(tier);
  for (const kernels::Element element : {kBf16, kFp16})
    for (int family = 0; family < kKernelFamilies; ++family) {
      const Kernel kernel = kernel_for(static_cast<KernelFamily>(family), element);
      ASSERT_TRUE(kernel.tier.has_value()) << family;
      EXPECT_TRUE(cpu_features().includes(features_of(*kernel.tier)));
    }
}

TEST_F(Choice, AllThatWasChosenPinsItAgain) {
  pin_cpu_kernels("generic,gelu=libtorch");
  for (int family = 0; family < kKernelFamilies; ++family)
    for (const kernels::Element element : {kBf16, kFp16})
      kernel_for(static_cast<KernelFamily>(family), element);
  const std::string choices = cpu_kernel_choices();
  pin_cpu_kernels("libtorch");
  pin_cpu_kernels(choices);
  for (int family = 0; family < kKernelFamilies; ++family)
    for (const kernels::Element element : {kBf16, kFp16})
      kernel_for(static_cast<KernelFamily>(family), element);
  kernel_for(KernelFamily::kUnscale, kernels::Element::kFloat32);
  EXPECT_THAT(cpu_kernel_choices(), HasSubstr(choices.substr(choices.find("bf16"))));
}

TEST_F(Choice, BadPinsNameTheCureAndChangeNothing) {
  pin_cpu_kernels("product=generic");
  const auto error = [](const std::string& pins) { return error_of([&] { pin_cpu_kernels(pins); }); };
  EXPECT_THAT(error("avx3"), HasSubstr("there is no kernel 'avx3'"));
  EXPECT_THAT(error("avx3"), HasSubstr("choose one of libtorch, generic, avx2"));
  EXPECT_THAT(error("avx51"), HasSubstr("did you mean 'avx512'?"));
  EXPECT_THAT(error("product=libtorch,produkt=libtorch"),
              HasSubstr("no family 'produkt' of kernels; did you mean 'product'?"));
  EXPECT_THAT(error("fp8.product=libtorch"), HasSubstr("no kernels for 'fp8'; choose bf16, fp16 or fp32"));
  EXPECT_THAT(error("fp32.product=libtorch"), HasSubstr("no family 'product'"));
  EXPECT_THAT(error("product="), HasSubstr("there is no kernel ''"));
  EXPECT_THAT(error("generic,"), HasSubstr("there is no kernel ''"));
  EXPECT_EQ(product(kBf16), Kernel{CpuTier::kGeneric});
  if (cpu_tier() == CpuTier::kAmxBf16) return;
  EXPECT_THAT(error("amx_bf16"), HasSubstr("this CPU runs kernels up to tier"));
}

TEST_F(Choice, ACheckpointsChoicesYieldToTheUsers) {
  if (!enable_cpu_kernels()) GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0";
  for (int family = 0; family < kKernelFamilies; ++family)
    kernel_for(static_cast<KernelFamily>(family), kFp16);
  const std::string choices = cpu_kernel_choices();
  EXPECT_THAT(resume_cpu_kernels(choices), testing::IsEmpty());
  EXPECT_THAT(resume_cpu_kernels("fp16.product=neon," + choices + ",bf16.nothing=generic"),
              testing::ElementsAre("fp16.product=neon", "bf16.nothing=generic"));
  pin_cpu_kernels("gelu=generic");
  EXPECT_THAT(resume_cpu_kernels("bf16.gelu=libtorch,fp16.gelu=libtorch"), testing::IsEmpty());
  EXPECT_EQ(kernel_for(KernelFamily::kGelu, kBf16), Kernel{CpuTier::kGeneric}) << "as the user said";
}

TEST_F(Choice, PinsThatTheEnvironmentOverrulesAreReported) {
  if (!enable_cpu_kernels()) GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0 already";
  ASSERT_EQ(setenv("MANTISSA_CPU_KERNELS", "0", 1), 0);
  {
    const Warnings warnings;
    pin_cpu_kernels("gelu=generic");
    pin_cpu_kernels("");
    pin_cpu_kernels("libtorch,fp16.gelu=libtorch,gelu=measured");
    EXPECT_THAT(warnings.texts, testing::ElementsAre(HasSubstr("MANTISSA_CPU_KERNELS=0 leaves")));
  }
  EXPECT_THAT(resume_cpu_kernels("bf16.gelu=generic,fp16.gelu=libtorch"),
              testing::ElementsAre("bf16.gelu=generic"));
  const std::string choices = cpu_kernel_choices();
  EXPECT_THAT(resume_cpu_kernels(choices), testing::IsEmpty());
  unsetenv("MANTISSA_CPU_KERNELS");
  EXPECT_THAT(resume_cpu_kernels(choices), testing::IsEmpty());
  EXPECT_EQ(product(kBf16), kLibtorchs) << "as it was computed before";
}

TEST_F(Choice, ComputesWithWhatIsPinned) {
  if (!enable_cpu_kernels()) GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0";
  const at::Tensor a = at::rand({40, 700}).to(at::kHalf), b = at::rand({700, 40}).to(at::kHalf);
  pin_cpu_kernels("libtorch");
  const at::Tensor with_libtorch = a.mm(b);
  disable_cpu_kernels();
  const at::Tensor stock = a.mm(b);
  enable_cpu_kernels();
  EXPECT_TRUE(test::same_bits(with_libtorch, stock));
  pin_cpu_kernels("generic");
  const at::Tensor generic = a.mm(b);
  const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
  test::expect_within_bound(generic, exact, exact, 700);
  disable_cpu_kernels();
}

TEST_F(Choice, IsTheFastestThatWasTimedAndThePreferredOneOfEquals) {
  EXPECT_EQ(fastest({{"a", 1}, {"b", 0.97}, {"c", 1.2}}), 0);
  EXPECT_EQ(fastest({{"a", 1}, {"b", 0.9}, {"c", 0.88}}), 1);
  EXPECT_EQ(fastest({{"a", 1}, {"b", 0.9}, {"c", 0.5}}), 2);
  EXPECT_EQ(fastest({{"a", std::numeric_limits<double>::infinity()}, {"b", 1}}), 1);
}

/// On every CPU, each row of the table follows from its timings.
TEST_F(Choice, TheTableHoldsItsOwnReasons) {
  const std::vector<KernelChoice> rows = cpu_kernel_table();
  // Unscaling and the six families of weights in 4 and 8 bits exist in float32, too.
  EXPECT_EQ(rows.size(), size_t{2} * kKernelFamilies + 7);
  for (const KernelChoice& row : rows) {
    SCOPED_TRACE(row.dtype + "." + row.family);
    ASSERT_THAT(row.source, testing::AnyOf("measured", "cached"));
    ASSERT_FALSE(row.timings.empty());
    EXPECT_EQ(row.timings.back().kernel, "libtorch");
    EXPECT_EQ(row.kernel, row.timings[fastest(row.timings)].kernel);
    for (const KernelTiming& timing : row.timings) EXPECT_GT(timing.seconds, 0) << timing.kernel;
    EXPECT_GT(row.over_float32, 0);
  }
}

TEST_F(Choice, MeasuringLeavesRandomNumbersAndGradientModeAlone) {
  at::manual_seed(5);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(5);
  const at::NoGradGuard no_grad;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  for (int family = 0; family < kKernelFamilies; ++family)
    kernel_for(static_cast<KernelFamily>(family), kFp16);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
}

TEST_F(Choice, ManyThreadsAskAtOnce) {
  std::vector<Kernel> found(8);
  std::vector<std::thread> threads;
  for (Kernel& kernel : found) threads.emplace_back([&kernel] { kernel = product(kBf16); });
  for (std::thread& thread : threads) thread.join();
  for (const Kernel& kernel : found) EXPECT_EQ(kernel, found[0]);
}

}  // namespace
}  // namespace mantissa::choice_test
