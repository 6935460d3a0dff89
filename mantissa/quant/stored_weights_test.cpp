#include "mantissa/quant/stored_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/suggest.h"
#include "mantissa/quant/int8_state.h"
#include "mantissa/quant/packed_4bit.h"
#include "mantissa/quant/quant_state.h"
#include "mantissa/quant/test_support_internal.h"
#include "mantissa/weights/packed_weight.h"

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

TEST(StoredWeights, QuantizedOnesAreFoundByTheirNamesAndDtypes) {
  EXPECT_THAT(quantized_weights_of(mixed()), ElementsAre("a.weight", "b.weight", "c.table", "weight"));
  const Tensors no_weight{{"a.weight", at::ones({2})}, {"a.bias", at::ones({2})}, {"SCB", at::ones({2})}};
  EXPECT_THAT(quantized_weights_of(no_weight), ElementsAre());
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

TEST(StoredWeights, AllTensorsOfAWeightAreListed) {
  std::map<std::string, at::ScalarType> dtypes;
  for (const auto& [name, tensor] : mixed()) dtypes.emplace(name, tensor.scalar_type());
  const auto found = find_stored_weights(dtypes);
  EXPECT_THAT(keys_of(found), ElementsAre("a.weight", "b.weight", "c.table", "weight"));
  EXPECT_THAT(found.at("a.weight").tensors,
              testing::UnorderedElementsAre("a.weight", "a.weight.absmax", "a.weight.quant_map",
                                            "a.weight.nested_absmax", "a.weight.nested_quant_map",
                                            "a.weight.quant_state.bitsandbytes__nf4"));
  EXPECT_EQ(found.at("a.weight").json, "a.weight.quant_state.bitsandbytes__nf4");
  EXPECT_FALSE(found.at("a.weight").is_int8);
  EXPECT_THAT(found.at("b.weight").tensors, ElementsAre("b.weight", "b.SCB", "b.weight_format"));
  EXPECT_THAT(found.at("c.table").tensors, ElementsAre("c.table", "c.table.SCB", "c.table.weight_format"));
  EXPECT_TRUE(found.at("weight").is_int8);
  EXPECT_EQ(
      find_stored_weights({{"a.weight", at::kByte}, {"a.weight.absmax", at::kFloat}}).at("a.weight").json, "")
      << "the state is missing";
  EXPECT_TRUE(find_stored_weights({{"a.weight", at::kFloat}, {"a.SCB", at::kFloat}}).empty()) << "no codes";
  EXPECT_THAT(error_of([] {
                find_stored_weights({{"a.weight", at::kChar}, {"a.weight_format", at::kByte}});
              }),
              HasSubstr("'a.SCB', are missing"));
}

TEST(StoredWeights, OnlyWhatAModelHasAsPlainNumbersIsRestored) {
  const at::Tensor packed = make_packed_weight(
      make_packed_4bit(quantize_4bit(at::ones({3, 5}) * 2, {.compress_statistics = true})));
  const Tensors some = dequantize_plain(mixed(), {{"a.weight", packed}, {"b.weight", at::ones({4, 6})}});
  EXPECT_THAT(quantized_weights_of(some), ElementsAre("a.weight"));
  EXPECT_TRUE(at::allclose(some.at("b.weight"), at::ones({4, 6})));
  EXPECT_TRUE(some.at("c.table").is_floating_point()) << "a name that the model does not have";
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

TEST(StoredWeights, FloatsBesideScalesOfTheirOwnAreNoCodes) {
  const Tensors plain{{"fc.weight", at::ones({2, 3})}, {"fc.SCB", at::ones({2})}};
  EXPECT_THAT(quantized_weights_of(plain), ElementsAre());
  EXPECT_TRUE(dequantize_stored(plain).at("fc.weight").is_same(plain.at("fc.weight")));
  EXPECT_TRUE(dequantize_plain(plain, {}).at("fc.weight").is_same(plain.at("fc.weight")));
  EXPECT_EQ(stored_shapes(plain).size(), 2u);
}

}  // namespace
}  // namespace mantissa::stored_weights_test
