#include "mantissa/amp/nonfinite_gradients.h"

#include <string>
#include <utility>
#include <vector>

#include "mantissa/amp/clip_grad.h"
#include "mantissa/amp/test_support_internal.h"

namespace mantissa::nonfinite_gradients_test {
namespace {

using testing::HasSubstr;
using testing::Not;
using torch::optim::SGD;

TEST(NonfiniteGradients, NF03_NamesTheParameters) {
  torch::nn::Sequential model;
  model->push_back("first", torch::nn::Linear(2, 3));
  model->push_back("second", torch::nn::Linear(3, 1));
  const auto named = model->named_parameters().pairs();
  EXPECT_TRUE(find_nonfinite_gradients(named).empty());  // no gradients
  for (const auto& [name, p] : named) p.mutable_grad() = torch::zeros_like(p);
  EXPECT_TRUE(find_nonfinite_gradients(named).empty());
  EXPECT_EQ(describe({}), "");
  model->named_parameters()["second.weight"].mutable_grad() = torch::tensor({{kInf, -kInf, kNan}});
  model->named_parameters()["first.bias"].grad()[1] = kNan;
  const auto found = find_nonfinite_gradients(named);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].name, "first.bias");
  EXPECT_EQ(found[1].sizes, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(found[1].inf_count, 2);
  EXPECT_EQ(found[1].nan_count, 1);
  EXPECT_EQ(describe(found), "first.bias [3]: 0 inf, 1 nan of 3; second.weight [1, 3]: 2 inf, 1 nan of 3");
  EXPECT_EQ(describe(found, 2), describe(found)) << "there are no more";
  EXPECT_EQ(describe(found, 1), "first.bias [3]: 0 inf, 1 nan of 3; and 1 more");
}

TEST(NonfiniteGradients, EveryKindOfGradient) {
  const auto sparse_row = torch::ones({2}).requires_grad_();
  sparse_row.mutable_grad() = sparse({kInf, 1.f});
  const std::vector<std::pair<std::string, at::Tensor>> named = {
      {"undefined", {}},
      {"none", torch::ones({1}).requires_grad_()},
      {"empty", parameter(torch::ones({0}), torch::ones({0}))},
      {"half", with_grad({kNan, 65504.f}, at::kHalf)},
      {"bfloat16", with_grad({1.f, -kInf}, at::kBFloat16)},
      {"double", with_grad({1.f}, at::kDouble)},
      {"complex", parameter(torch::ones({1}, at::kComplexFloat),
                            torch::full({1}, c10::complex<float>(0, kInf), at::kComplexFloat))},
      {"sparse", sparse_row}};
  EXPECT_EQ(describe(find_nonfinite_gradients(named), 9),
            "half [2]: 0 inf, 1 nan of 2; bfloat16 [2]: 1 inf, 0 nan of 2; complex [1]: 1 inf, 0 nan of 1; "
            "sparse [2]: 1 inf, 0 nan of 2");
}

TEST(NonfiniteGradients, ReadsOnceForADevice) {
  const std::vector<std::pair<std::string, at::Tensor>> named = {{"a", with_grad({kInf})},
                                                                 {"b", with_grad({kNan})}};
  HostReads reads;
  EXPECT_EQ(find_nonfinite_gradients(named).size(), 2u);
  EXPECT_EQ(reads.count(), 0);  // no item() calls: one copy
}

TEST(GradScaler, WarnsOfStepsSkippedInARowAndNamesTheParameters) {
  auto scaler = used_scaler({.warn_after_skips = 3});
  const auto good = with_grad({1.f}), bad = with_grad({1.f, kInf, kNan});
  SGD optimizer({{{good}}, {{with_grad({1.f}), bad}}}, torch::optim::SGDOptions(0.1)),
      other({with_grad({1.f})}, 0.1);
  Warnings warnings;
  for (int i = 0; i < 7; ++i) {
    EXPECT_FALSE(scaler.step(optimizer));
    EXPECT_TRUE(scaler.step(other));  // another optimizer's steps do not end the row
    scaler.update();
    EXPECT_EQ(warnings.texts.size(), static_cast<size_t>((i + 1) / 3)) << i;
  }
  EXPECT_THAT(warnings.texts[0],
              HasSubstr("3 overflows in a row, whose steps were skipped or retried; the scale is 16384"));
  EXPECT_THAT(warnings.texts[0], HasSubstr("inf or nan: group 1, parameter 1 [3]: 1 inf, 1 nan of 3."));
  EXPECT_THAT(warnings.texts[1], HasSubstr("6 overflows in a row"));
  set_grad(bad, 1);
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  set_grad(bad, kInf);
  for (int i = 0; i < 2; ++i) {
    scaler.step(optimizer);
    scaler.update();
  }
  EXPECT_EQ(warnings.texts.size(), 2u);  // the row was broken
}

TEST(GradScaler, TheWarningTakesTheCallersNamesAndReadsOnlyThen) {
  const auto p = with_grad({kInf});
  auto scaler =
      used_scaler({.warn_after_skips = 2, .parameter_name = [&](const at::Tensor& parameter) {
                     return parameter.is_same(p) ? std::string("embedding.weight") : std::string("?");
                   }});
  SGD optimizer({p}, 0.1);
  Warnings warnings;
  HostReads reads;
  scaler.step(optimizer);
  scaler.update();
  EXPECT_EQ(reads.count(), 1);
  scaler.step(optimizer);
  EXPECT_GT(reads.count(), 2);
  ASSERT_EQ(warnings.texts.size(), 1u);
  EXPECT_THAT(warnings.texts[0], HasSubstr("embedding.weight [1]: 1 inf"));
  EXPECT_THAT(warnings.texts[0], Not(HasSubstr("group")));
}

// A norm of nan makes every gradient nan, and clamping makes inf finite.
TEST(GradScaler, TheWarningNamesTheGradientsAsTheyWereBeforeClipping) {
  for (const int64_t warn_after : {1, 2, 3})
    for (const bool by_norm : {false, true}) {
      auto scaler = used_scaler({.warn_after_skips = warn_after});
      const auto good = with_grad({1.f, 1.f}), bad = with_grad({1.f, 1.f});
      SGD optimizer({good, bad}, 0.1);
      Warnings warnings;
      for (int i = 0; i < 4; ++i) {
        set_grad(good, 1.f);
        set_grad(bad, kInf);
        HostReads reads;
        scaler.unscale_(optimizer);
        EXPECT_EQ(reads.count() > 0, (i + 1) % warn_after == 0) << i;  // only if a warning may follow
        if (by_norm) {
          clip_grad_norm_({good, bad}, 1.0);
        } else {
          scaler.clip_grad_value_(optimizer, 1.0);
        }
        EXPECT_FALSE(scaler.step(optimizer));
        scaler.update();
      }
      ASSERT_EQ(warnings.texts.size(), 4 / static_cast<size_t>(warn_after));
      for (const std::string& text : warnings.texts) {
        EXPECT_THAT(text, HasSubstr("inf or nan: group 0, parameter 1 [2]: 2 inf, 0 nan of 2. "));
      }
      EXPECT_THAT(warnings.texts[0], HasSubstr("start from a lower init_scale. trace_nonfinite()"));
    }
}

TEST(GradScaler, TheWarningOfAFixedScaleSaysSo) {
  auto scaler = used_scaler({.min_scale = 65536.0, .max_scale = 65536.0, .warn_after_skips = 1});
  SGD optimizer({with_grad({kInf})}, 0.1);
  Warnings warnings;
  scaler.step(optimizer);
  ASSERT_EQ(warnings.texts.size(), 1u);
  EXPECT_THAT(warnings.texts[0], HasSubstr("if the scale is still high, lower the fixed scale."));
}

TEST(GradScaler, AnotherOptimizerAtTheSameAddressStartsItsOwnRow) {
  auto scaler = used_scaler({.warn_after_skips = 2});
  Warnings warnings;
  std::optional<SGD> optimizer;
  for (int i = 0; i < 4; ++i) {
    optimizer.emplace(std::vector<at::Tensor>{with_grad({kInf})}, 0.1);
    EXPECT_FALSE(scaler.step(*optimizer));
    scaler.update();
  }
  EXPECT_TRUE(warnings.texts.empty());
}

TEST(GradScaler, NoWarningWhenOffOrSelfUnscaling) {
  Warnings warnings;
  auto off = used_scaler({.warn_after_skips = 0}), scaler = used_scaler({.warn_after_skips = 1});
  SGD optimizer({with_grad({kInf})}, 0.1);
  KernelAdamW fused({with_grad({kInf})});
  for (int i = 0; i < 20; ++i) {
    off.step(optimizer);
    off.update();
    scaler.step(fused);
    scaler.update();
  }
  EXPECT_TRUE(warnings.texts.empty());
}

TEST(GradScaler, UnscalingForAnOptimizerThatDividesReadsNothingBeforeASkipWasReported) {
  auto scaler = used_scaler({.warn_after_skips = 1});
  const auto a = with_grad({kInf}), b = with_grad({1.f});
  KernelSgd optimizer({a, b}, 0.1);
  Warnings warnings;
  HostReads reads;
  scaler.unscale_(optimizer);
  scaler.step(optimizer);
  EXPECT_EQ(reads.count(), 0);
  scaler.note_step(optimizer, false);
  scaler.update();
  set_grad(a, kInf);
  const int before = reads.count();
  scaler.unscale_(optimizer);
  EXPECT_GT(reads.count(), before);
  scaler.update();
  set_grad(a, 1.f);
  set_grad(b, kInf);
  scaler.step(optimizer);
  scaler.note_step(optimizer, false);
  ASSERT_EQ(warnings.texts.size(), 2u);
  EXPECT_THAT(warnings.texts[0], HasSubstr("inf or nan: group 0, parameter 0 [1]"));
  EXPECT_THAT(warnings.texts[1], HasSubstr("inf or nan: group 0, parameter 1 [1]"))
      << "those of its own step";
}

}  // namespace
}  // namespace mantissa::nonfinite_gradients_test
