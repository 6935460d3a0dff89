#include "mantissa/quant/int8_state.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/quant/test_support_internal.h"

namespace mantissa::int8_state_test {
namespace {

using quant::recorded;
using quant::Tensors;
using test::same_bits;
using testing::HasSubstr;

const std::string kName = "layer.weight";

TEST(Int8State, Q32_ReadsAndWritesWhatBitsandbytesHasSaved) {
  Tensors tensors = recorded("state_linear8bit");
  const QuantizedInt8 got = unpack_state_int8(tensors, kName);
  EXPECT_TRUE(at::equal(got.codes, tensors.at(kName)));
  EXPECT_TRUE(same_bits(got.scales, tensors.at("layer.SCB")));
  const Tensors packed = pack_state(got, kName);
  tensors.erase("layer.bias");
  ASSERT_EQ(packed.size(), tensors.size());
  for (const auto& [name, tensor] : packed) {
    ASSERT_TRUE(tensors.contains(name)) << name;
    EXPECT_EQ(tensor.scalar_type(), tensors.at(name).scalar_type()) << name;
    EXPECT_EQ(tensor.sizes(), tensors.at(name).sizes()) << name;
    EXPECT_TRUE(same_bits(tensor, tensors.at(name))) << name;
  }
}

TEST(Int8State, NamesFollowTheParametersName) {
  const QuantizedInt8 rows = quantize_int8(at::randn({4, 8}));
  EXPECT_TRUE(pack_state(rows, "weight").contains("SCB"));
  EXPECT_TRUE(pack_state(rows, "a.b.weight").contains("a.b.weight_format"));
  EXPECT_TRUE(pack_state(rows, "attention.in_proj_weight").contains("attention.in_proj_weight.SCB"));
  EXPECT_TRUE(has_state_int8(pack_state(rows, "x.in_proj_weight"), "x.in_proj_weight"));
  EXPECT_FALSE(has_state_int8(pack_state(rows, "x.weight"), "y.weight"));
}

TEST(Int8State, Q32_WhatIsDamagedIsRefusedByName) {
  const auto after = [](const auto& change) {
    Tensors tensors = recorded("state_linear8bit");
    change(tensors);
    return error_of([&] { unpack_state_int8(tensors, kName); });
  };
  EXPECT_EQ(after([](Tensors& t) { t.erase("layer.weight_format"); }), "no error");
  EXPECT_THAT(after([](Tensors& t) { t["layer.weight_format"] = at::full({}, 2, at::kByte); }),
              HasSubstr("'layer.weight_format' is not 0"));
  EXPECT_THAT(after([](Tensors& t) { t["layer.weight_format"] = at::zeros({2}, at::kByte); }),
              HasSubstr("is not 0"));
  EXPECT_THAT(after([](Tensors& t) { t.erase("layer.SCB"); }), HasSubstr("there is no tensor 'layer.SCB'"));
  EXPECT_THAT(after([](Tensors& t) { t.erase(kName); }), HasSubstr("there is no tensor 'layer.weight'"));
  EXPECT_THAT(after([](Tensors& t) { t["layer.SCB"] = at::ones({3}); }), HasSubstr("needs float32 and 16"));
  EXPECT_THAT(after([](Tensors& t) { t["layer.SCB"] = at::ones({16}, at::kHalf); }), HasSubstr("dtype Half"));
  EXPECT_THAT(after([](Tensors& t) { t["layer.SCB"][0] = NAN; }), HasSubstr("negative, inf or nan"));
  EXPECT_THAT(after([](Tensors& t) { t[kName] = t[kName].to(at::kByte); }), HasSubstr("is int8 [out, in]"));
}

}  // namespace
}  // namespace mantissa::int8_state_test
