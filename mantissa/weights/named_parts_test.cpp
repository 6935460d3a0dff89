#include "mantissa/weights/named_parts.h"

#include "mantissa/weights/replace_weight.h"
#include "mantissa/weights/test_support_internal.h"

namespace mantissa::named_parts_test {
namespace {

using testing::_;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

using Tensors = std::map<std::string, at::Tensor>;

class NamedParts : public testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(0); }

  static torch::nn::Sequential net() {
    torch::nn::Sequential made(torch::nn::Linear(8, 4), torch::nn::Linear(4, 2));
    for (const char* const name : {"0.weight", "1.weight"})
      replace_weight(*made, name, pack(made->named_parameters()[name], at::kHalf));
    return made;
  }

  static Tensors parts_of(const torch::nn::Module& module) {
    Tensors all;
    for (const auto& item : module.named_parameters()) all.emplace(item.key(), item.value());
    return named_parts(all);
  }
};

TEST_F(NamedParts, HaveTheNamesOfTheWeightAndThePart) {
  const auto made = net();
  EXPECT_THAT(parts_of(*made),
              ElementsAre(Pair("0.bias", _), Pair("0.weight", _), Pair("0.weight.scale", _),
                          Pair("1.bias", _), Pair("1.weight", _), Pair("1.weight.scale", _)));
  EXPECT_EQ(parts_of(*made)["0.weight"].scalar_type(), at::kChar);
  EXPECT_TRUE(parts_of(*made)["0.bias"].is_same(made->named_parameters()["0.bias"]));
}

TEST_F(NamedParts, TwoTensorsWithOneNameAreRefused) {
  const Tensors tensors = {{"weight", pack(torch::ones({2, 2}))}, {"weight.scale", torch::ones({2})}};
  EXPECT_THAT(error_of([&] { named_parts(tensors); }), HasSubstr("'weight.scale'"));
}

TEST_F(NamedParts, PlainWeightsAreTheOthers) {
  const at::Tensor plain = torch::ones({2});
  const Tensors left = plain_weights({{"a", pack(torch::ones({2, 2}))}, {"b", plain}});
  EXPECT_THAT(left, ElementsAre(Pair("b", _)));
  EXPECT_TRUE(left.at("b").is_same(plain));
}

TEST_F(NamedParts, LoadWhatWasSaved) {
  torch::nn::Sequential saved = net(), loaded = net();
  Tensors stored = parts_of(*saved);
  PartsLoader loader(*loaded, stored);
  EXPECT_FALSE(at::equal(loaded->parameters()[0].dequantize(), saved->parameters()[0].dequantize()));
  loader.load();
  EXPECT_THAT(stored, ElementsAre(Pair("0.bias", _), Pair("1.bias", _))) << "the plain ones are left";
  for (const char* const name : {"0.weight", "1.weight"}) {
    const at::Tensor from = saved->named_parameters()[name], to = loaded->named_parameters()[name];
    EXPECT_TRUE(at::equal(from.dequantize(), to.dequantize()));
    EXPECT_EQ(to.scalar_type(), at::kHalf);
    EXPECT_FALSE(packed_data(from)->parts().at("").is_alias_of(packed_data(to)->parts().at("")));
  }
}

TEST_F(NamedParts, MismatchesAreNamedAndChangeNothing) {
  torch::nn::Sequential saved = net(), loaded = net();
  const at::Tensor before = loaded->parameters()[0].dequantize();
  const auto error = [&](const std::string& name, const at::Tensor& value) {
    Tensors stored = parts_of(*saved);
    stored.erase(name);
    if (value.defined()) stored.emplace(name, value);
    return error_of([&] { PartsLoader(*loaded, stored).load(); });
  };
  EXPECT_THAT(error("1.weight.scale", {}),
              AllOf(HasSubstr("'1.weight.scale' is missing"), HasSubstr("int8 per row")));
  EXPECT_THAT(error("1.weight", torch::ones({2, 4})), AllOf(HasSubstr("Float"), HasSubstr("Char")));
  EXPECT_THAT(error("1.weight", torch::ones({2, 3}, at::kChar)),
              AllOf(HasSubstr("[2, 3]"), HasSubstr("[2, 4]")));
  EXPECT_THAT(error("1.weight.scale", -torch::ones({2})), HasSubstr("negative")) << "the format's own check";
  Tensors none;
  EXPECT_THAT(error_of([&] { PartsLoader(*loaded, none, "run/weights.safetensors"); }),
              AllOf(testing::StartsWith("'run/weights.safetensors' cannot be loaded: '0.weight' is missing"),
                    HasSubstr("int8 per row")));
  EXPECT_TRUE(at::equal(loaded->parameters()[0].dequantize(), before));
}

TEST_F(NamedParts, ATiedWeightIsLoadedUnderBothNames) {
  torch::nn::Linear a(4, 4);
  torch::nn::Sequential tied(a, a);
  replace_weight(*tied, "0.weight", pack(a->weight));
  Tensors stored = parts_of(*tied);
  const at::Tensor values = a->weight.dequantize();
  replace_weight(*tied, "0.weight", pack(torch::ones({4, 4})));
  PartsLoader(*tied, stored).load();
  EXPECT_TRUE(stored.contains("0.bias") && !stored.contains("0.weight") && !stored.contains("1.weight"));
  EXPECT_TRUE(at::equal(a->weight.dequantize(), values));
}

}  // namespace
}  // namespace mantissa::named_parts_test
