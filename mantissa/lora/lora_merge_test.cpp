#include <limits>

#include "mantissa/lora/test_support_internal.h"

namespace mantissa::lora_merge_test {
namespace {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

class LoraMerge : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(2); }
  const Tensor x_ = torch::randn({5, 6});
};

/// A packed format that can only be read.
class ReadOnly final : public PackedData {
 public:
  explicit ReadOnly(Tensor values) : values_(std::move(values)) {}
  std::string description() const override { return "read-only"; }
  at::IntArrayRef sizes() const override { return values_.sizes(); }
  Parts parts() const override { return {{"", values_}}; }
  PackedDataPtr with_parts(Parts parts) const override { return std::make_shared<ReadOnly>(parts.at("")); }
  Tensor dequantize(at::ScalarType dtype) const override { return values_.to(dtype); }

 private:
  Tensor values_;
};

TEST_F(LoraMerge, MergedFloat32LayersComputeTheSameAndUnmergeExactly) {
  for (const bool use_dora : {false, true}) {
    LoraNet net;
    LoraModel lora(*net, {.lora_dropout = 0.3, .use_dora = use_dora, .target_modules = {"up", "head"}});
    randomize(*net);
    net->eval();
    const Tensor before = base_weight(net->up(0).weight).clone(), with = net(x_).detach();
    const auto reports = lora.merge_adapter();
    ASSERT_EQ(reports.size(), 3u);
    EXPECT_EQ(reports[0].name, "blocks.0.up");
    for (const MergedLayer& each : reports) {
      EXPECT_EQ(each.max_error, 0) << each.name;
      EXPECT_EQ(each.relative_error, 0) << each.name;
    }
    EXPECT_TRUE(lora.is_merged());
    EXPECT_FALSE(is_packed(net->up(0).weight));
    EXPECT_TRUE(at::allclose(net(x_), with, 1e-5, 1e-5));
    net->train();
    EXPECT_TRUE(at::equal(net(x_), net(x_))) << "a merged adapter drops nothing";
    net->eval();
    lora.unmerge_adapter();
    EXPECT_TRUE(at::equal(base_weight(net->up(0).weight), before));
    EXPECT_TRUE(at::equal(net(x_), with));
  }
}

TEST_F(LoraMerge, ABfloat16BaseReportsWhatRoundingCosts) {
  LoraNet net;
  net->to(at::kBFloat16);
  LoraModel lora(*net, {.target_modules = {"up"}});
  randomize(*net);
  const Tensor exact = packed_data(net->up(0).weight)->dequantize(at::kFloat).detach();
  const auto reports = lora.merge_adapter();
  EXPECT_EQ(net->up(0).weight.scalar_type(), at::kBFloat16);
  const double error = (net->up(0).weight.to(at::kFloat) - exact).abs().max().item<double>();
  EXPECT_EQ(reports[0].max_error, error);
  EXPECT_GT(error, 0);
  EXPECT_LT(reports[0].relative_error, 1.0 / 256) << "half a unit in the last of 8 bits";
  EXPECT_GT(reports[0].relative_error, 1.0 / 2048);
}

TEST_F(LoraMerge, APackedBaseIsQuantizedAgainAndTheErrorIsStated) {
  LoraNet net;
  pack_blocks(net);
  LoraModel lora(*net, {.target_modules = {"up", "down"}});
  randomize(*net);
  const PackedDataPtr before = packed_data(base_weight(net->up(0).weight));
  const Tensor exact = packed_data(net->up(0).weight)->dequantize(at::kFloat).detach(),
               with = net(x_).detach();
  const auto reports = lora.merge_adapter();
  ASSERT_TRUE(is_packed(net->up(0).weight));
  EXPECT_EQ(packed_data(net->up(0).weight)->description(), "int8 per row");
  const Tensor error = net->up(0).weight.dequantize() - exact;
  EXPECT_EQ(reports[0].max_error, error.abs().max().item<double>());
  EXPECT_NEAR(reports[0].relative_error, (error.norm() / exact.norm()).item<double>(), 1e-6);
  const Tensor change = exact - before->dequantize(at::kFloat);
  EXPECT_NEAR(reports[0].error_over_change, (error.norm() / change.norm()).item<double>(), 1e-5);
  EXPECT_GT(reports[0].max_error, 0);
  EXPECT_LE(reports[0].max_error, exact.abs().max().item<double>() / 127) << "half a code";
  lora.unmerge_adapter();
  EXPECT_EQ(packed_data(base_weight(net->up(0).weight)), before);
  EXPECT_TRUE(at::equal(net(x_), with));
}

TEST_F(LoraMerge, APackedBaseBecomesPlainOnRequest) {
  LoraNet net;
  pack_blocks(net);
  LoraModel lora(*net, {.target_modules = {"up", "down"}});
  randomize(*net);
  const Tensor with = net(x_).detach();
  for (const MergedLayer& each : lora.merge_and_unload(/*dequantize=*/true)) EXPECT_EQ(each.max_error, 0);
  for (const auto& item : net->named_parameters()) {
    EXPECT_FALSE(is_packed(item.value())) << item.key();
    EXPECT_EQ(item.key().find("lora"), std::string::npos);
  }
  EXPECT_TRUE(at::allclose(net(x_), with, 1e-5, 1e-5));
}

TEST_F(LoraMerge, APlainBfloat16WeightLosesHalfAUnitInTheLastPlaceAtMost) {
  for (const bool is_float_first : {false, true}) {
    LoraNet net;
    pack_blocks(net);
    net->to(at::kBFloat16);
    LoraModel lora(*net, {.target_modules = {"up"}});
    randomize(*net);
    const Tensor exact = packed_data(net->up(0).weight)->dequantize(at::kFloat).detach();
    if (is_float_first) net->to(at::kFloat);
    const auto reports = lora.merge_adapter(/*dequantize=*/true);
    const Tensor merged = net->up(0).weight, error = (merged.to(at::kFloat) - exact).abs();
    EXPECT_EQ(reports[0].max_error, error.max().item<double>());
    if (is_float_first) {
      EXPECT_EQ(reports[0].max_error, 0);
      continue;
    }
    EXPECT_EQ(merged.scalar_type(), at::kBFloat16);
    // Numbers from 2^(n - 1) to 2^n are 2^(n - 8) apart, since bfloat16 has 8 significant bits.
    const Tensor half_a_unit = at::ldexp(at::ones_like(exact), std::get<1>(at::frexp(exact)) - 9);
    EXPECT_TRUE((error <= half_a_unit).all().item<bool>());
    EXPECT_TRUE((error <= exact.abs() / 256).all().item<bool>());
    EXPECT_GT(reports[0].max_error, 0);
  }
}

TEST_F(LoraMerge, MergeAndUnloadLeavesAPlainModel) {
  LoraNet net;
  LoraModel lora(*net, {.use_rslora = true});
  randomize(*net);
  const Tensor with = net(x_).detach();
  EXPECT_EQ(lora.merge_and_unload().size(), 5u);
  EXPECT_TRUE(at::allclose(net(x_), with, 1e-5, 1e-5));
  EXPECT_EQ(net->parameters().size(), LoraNet()->parameters().size());
  for (const Tensor& p : net->parameters()) EXPECT_TRUE(p.requires_grad());
  EXPECT_NO_THROW(net->up(0).clone());
}

TEST_F(LoraMerge, NothingIsMergedIfOneLayerIsNotFinite) {
  LoraNet net;
  LoraModel lora(*net, {});
  randomize(*net);
  const Tensor head = parameter(*net, "head.lora_B.default.weight");
  const at::NoGradGuard no_grad;
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    head[1][0] = bad;
    EXPECT_THAT(error_of([&] { lora.merge_adapter(); }),
                AllOf(HasSubstr("'head'"), HasSubstr("not finite"), HasSubstr("no layer has been merged")));
    EXPECT_TRUE(is_packed(net->up(0).weight)) << "the first layer could have been merged";
    EXPECT_FALSE(lora.is_merged());
  }
  head[1][0] = 1;
  EXPECT_NO_THROW(lora.merge_adapter());
}

TEST_F(LoraMerge, AFloat16BaseThatWouldOverflowIsNotMerged) {
  torch::nn::Linear layer(4, 3);
  torch::nn::Sequential net(layer);
  net->to(at::kHalf);
  LoraModel lora(*net, {});
  {
    const at::NoGradGuard no_grad;
    parameter(*net, "0.lora_A.default.weight").fill_(300);
    parameter(*net, "0.lora_B.default.weight").fill_(300);
  }
  EXPECT_THAT(error_of([&] { lora.merge_adapter(); }), AllOf(HasSubstr("'0'"), HasSubstr("overflows")));
  EXPECT_FALSE(lora.is_merged());
  EXPECT_TRUE(is_packed(layer->weight));
}

TEST_F(LoraMerge, AFormatThatCannotQuantizeSaysSo) {
  LoraNet net;
  const Tensor weight = net->head->weight;
  replace_weight(weight, make_packed_weight(std::make_shared<ReadOnly>(weight.detach().clone())));
  LoraModel lora(*net, {});
  randomize(*net);
  EXPECT_THAT(error_of([&] { lora.merge_adapter(); }),
              AllOf(HasSubstr("'head'"), HasSubstr("read-only"), HasSubstr("dequantize = true")));
  EXPECT_TRUE(is_packed(net->up(0).weight));
  EXPECT_NO_THROW(lora.merge_adapter(/*dequantize=*/true));
}

TEST_F(LoraMerge, FunctionsThatNeedUnmergedLayersSaySo) {
  LoraNet net;
  LoraModel lora(*net, {});
  EXPECT_THAT(error_of([&] { lora.unmerge_adapter(); }), HasSubstr("not merged"));
  lora.disable_adapters();
  EXPECT_THAT(error_of([&] { lora.merge_adapter(); }), HasSubstr("no adapter is active"));
  lora.enable_adapters();
  lora.merge_adapter();
  EXPECT_THAT(error_of([&] { lora.merge_adapter(); }), HasSubstr("unmerge_adapter()"));
  EXPECT_THAT(error_of([&] { lora.set_adapter("default"); }), HasSubstr("unmerge_adapter()"));
  EXPECT_THAT(error_of([&] { lora.disable_adapters(); }), HasSubstr("unmerge_adapter()"));
  EXPECT_THAT(error_of([&] { lora.add_adapter("b", {}); }), HasSubstr("unmerge_adapter()"));
  EXPECT_THAT(error_of([&] { lora.delete_adapter("default"); }), HasSubstr("unmerge_adapter()"));
  lora.unload();
  EXPECT_EQ(net->parameters().size(), LoraNet()->parameters().size());
}

TEST_F(LoraMerge, AMergedModelMayBeConvertedBeforeItIsUnmerged) {
  LoraNet net;
  LoraModel lora(*net, {});
  randomize(*net);
  const Tensor base = base_weight(net->up(0).weight).clone();
  lora.merge_adapter();
  net->to(at::kBFloat16);
  lora.unmerge_adapter();
  EXPECT_TRUE(at::equal(base_weight(net->up(0).weight), base.to(at::kBFloat16)));
  EXPECT_EQ(net(x_.to(at::kBFloat16)).scalar_type(), at::kBFloat16);
}

TEST_F(LoraMerge, AMergedModelMayBeQuantizedBeforeItIsUnmerged) {
  LoraNet net;
  LoraModel lora(*net, {});
  randomize(*net);
  const Tensor base = base_weight(net->up(0).weight).detach().clone();
  lora.merge_adapter();
  const Tensor merged = net->up(0).weight.detach();
  replace_weight(net->up(0).weight, pack(merged));
  lora.unmerge_adapter();
  const Tensor unmerged = base_weight(net->up(0).weight);
  EXPECT_TRUE(is_packed(unmerged));
  EXPECT_TRUE(at::equal(mantissa::dequantize(unmerged), mantissa::dequantize(pack(base))));
}

TEST_F(LoraMerge, NothingIsUnmergedIfOneLayerCannotBe) {
  LoraNet net;
  LoraModel lora(*net, {});
  randomize(*net);
  lora.merge_adapter();
  const Tensor head = net->head->weight, merged = head.detach().clone();
  replace_weight(head, make_packed_weight(std::make_shared<ReadOnly>(merged)));
  EXPECT_THAT(
      error_of([&] { lora.unmerge_adapter(); }),
      AllOf(HasSubstr("unmerge_adapter: 'head'"), HasSubstr("read-only"), HasSubstr("no layer has changed")));
  EXPECT_FALSE(is_packed(net->up(0).weight)) << "the first layer could have been unmerged";
  EXPECT_TRUE(lora.is_merged());
  replace_weight(head, merged);
  EXPECT_NO_THROW(lora.unmerge_adapter());
  EXPECT_TRUE(is_packed(net->up(0).weight));
}

TEST_F(LoraMerge, SeveralActiveAdaptersAreMergedTogether) {
  LoraNet net;
  LoraModel lora(*net, {.target_modules = {"up"}}, "a");
  lora.add_adapter("b", {.use_dora = true, .target_modules = {"up", "down"}});
  randomize(*net, "a");
  randomize(*net, "b");
  lora.set_adapters({"a", "b"});
  const Tensor with = net(x_).detach();
  lora.merge_adapter();
  EXPECT_TRUE(at::allclose(net(x_), with, 1e-5, 1e-5));
}

}  // namespace
}  // namespace mantissa::lora_merge_test
