#include "mantissa/quant/stored_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/suggest.h"
#include "mantissa/quant/int8_state.h"
#include "mantissa/quant/quant_state.h"
#include "mantissa/quant/test_support_internal.h"

namespace mantissa::stored_weights_test {
namespace {

using quant::recorded;
using quant::Tensors;
using test::same_bits;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Key;
using testing::Pair;

/// Weights in every form, with other tensors whose names are similar.
Tensors mixed() {
  Tensors all = pack_state(quantize_4bit(at::ones({3, 5}) * 2, {.compress_statistics = true}), "a.weight");
  all.merge(pack_state(quantize_int8(at::ones({4, 6})), "b.weight"));
  all.merge(pack_state(quantize_int8(at::ones({2, 3})), "c.table"));
  all.merge(pack_state(quantize_int8(at::ones({2, 2})), "weight"));
  all.emplace("a.bias", at::ones({3}));
  all.emplace("d.SCB", at::ones({7}));  // a parameter of this name, and no weight
  all.emplace("d.other", at::ones({7}));
  return all;
}

TEST(StoredWeights, QuantizedOnesAreFoundByTheirNames) {
  EXPECT_THAT(quantized_weights_of(keys_of(mixed())),
              ElementsAre("a.weight", "b.weight", "c.table", "weight"));
  EXPECT_THAT(quantized_weights_of({"a.weight", "a.bias", "SCB"}), ElementsAre());
}

TEST(StoredWeights, ValuesTakeTheirPlace) {
  const Tensors values = dequantize_stored(mixed());
  EXPECT_THAT(values, ElementsAre(Key("a.bias"), Key("a.weight"), Key("b.weight"), Key("c.table"),
                                  Key("d.SCB"), Key("d.other"), Key("weight")));
  EXPECT_TRUE(at::allclose(values.at("a.weight"), at::ones({3, 5}) * 2));
  EXPECT_TRUE(at::allclose(values.at("c.table"), at::ones({2, 3})));
  Tensors kernel = pack_state(quantize_int8(at::ones({4, 6})), "weight");
  kernel["weight"] = kernel["weight"].view({4, 3, 2});
  EXPECT_EQ(dequantize_stored(kernel).at("weight").sizes(), (std::vector<int64_t>{4, 3, 2}));
  EXPECT_EQ(dequantize_stored(mixed(), at::kBFloat16).at("b.weight").scalar_type(), at::kBFloat16);
  const Tensors plain{{"x", at::ones({2})}};
  EXPECT_TRUE(dequantize_stored(plain).at("x").is_same(plain.at("x")));
}

TEST(StoredWeights, Q17_BitsandbytesFilesAreRestored) {
  for (const std::string file : {"state_linear4bit_nf4_dq", "state_linear4bit_fp4", "state_linear8bit"}) {
    Tensors saved = recorded(file);
    for (const auto& [name, tensor] : recorded(file))
      if (!name.starts_with("layer.")) saved.erase(name);
    const at::Tensor want = file == "state_linear8bit"
                                ? dequantize_int8(unpack_state_int8(saved, "layer.weight"))
                                : dequantize_4bit(unpack_state_4bit(saved, "layer.weight"), at::kFloat);
    EXPECT_TRUE(same_bits(dequantize_stored(saved).at("layer.weight"), want)) << file;
  }
}

TEST(StoredWeights, ShapesAreThoseOfTheValues) {
  using Shape = std::vector<int64_t>;
  EXPECT_THAT(stored_shapes(mixed()),
              ElementsAre(Pair("a.bias", Shape{3}), Pair("a.weight", Shape{3, 5}),
                          Pair("b.weight", Shape{4, 6}), Pair("c.table", Shape{2, 3}),
                          Pair("d.SCB", Shape{7}), Pair("d.other", Shape{7}), Pair("weight", Shape{2, 2})));
}

TEST(StoredWeights, ATornStateIsRefused) {
  Tensors torn = mixed();
  torn.erase("a.weight.absmax");
  EXPECT_THAT(error_of([&] { dequantize_stored(torn); }), HasSubstr("no tensor 'a.weight.absmax'"));
  EXPECT_THAT(error_of([&] { stored_shapes(torn); }), HasSubstr("no tensor 'a.weight.absmax'"));
}

}  // namespace
}  // namespace mantissa::stored_weights_test
