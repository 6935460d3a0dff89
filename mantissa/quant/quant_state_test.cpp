#include "mantissa/quant/quant_state.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include <torch/torch.h>

#include "mantissa/quant/quant_state_json_internal.h"
#include "mantissa/quant/test_support_internal.h"

namespace mantissa::quant_state_test {
namespace {

using quant::recorded;
using quant::Tensors;
using test::same_bits;
using testing::HasSubstr;

constexpr const char* kFiles[] = {"state_linear4bit_nf4_dq", "state_linear4bit_fp4"};
const std::string kName = "layer.weight";

std::string text_of(const at::Tensor& bytes) {
  return {reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>()), static_cast<size_t>(bytes.numel())};
}

at::Tensor bytes_of(const std::string& text) {
  return at::from_blob(const_cast<char*>(text.data()), {static_cast<int64_t>(text.size())}, at::kByte)
      .clone();
}

std::string json_name(const Tensors& tensors) {
  for (const auto& [name, tensor] : tensors)
    if (name.find("bitsandbytes__") != std::string::npos) return name;
  return "";
}

quant::QuantStateJson json_of(const Tensors& tensors) {
  return quant::parse_quant_state_json(text_of(tensors.at(json_name(tensors))), "the test's JSON");
}

TEST(QuantState, Q17_ReadsWhatBitsandbytesHasSaved) {
  for (const char* const file : kFiles) {
    const Tensors tensors = recorded(file);
    const Quantized4Bit got = unpack_state_4bit(tensors, kName);
    EXPECT_EQ(got.shape, (std::vector<int64_t>{32, 64}));
    EXPECT_EQ(got.dtype, at::kBFloat16);
    EXPECT_EQ(got.is_nested(), std::string(file).find("dq") != std::string::npos);
    // Restored from the parts by hand.
    at::Tensor absmax = tensors.at(kName + ".absmax");
    if (got.is_nested())
      absmax = tensors.at(kName + ".nested_quant_map").index({absmax.to(at::kLong)}) *
                   tensors.at(kName + ".nested_absmax").repeat_interleave(256).narrow(0, 0, absmax.numel()) +
               json_of(tensors).nested->offset;
    const at::Tensor codes = tensors.at(kName).view({-1});
    const at::Tensor nibbles = at::stack({codes.__rshift__(4), codes.bitwise_and(15)}, -1).view({-1});
    const at::Tensor want = (tensors.at(kName + ".quant_map").index({nibbles.to(at::kLong)}) *
                             absmax.to(at::kFloat).repeat_interleave(64))
                                .view({32, 64})
                                .to(at::kBFloat16);
    EXPECT_TRUE(same_bits(dequantize_4bit(got), want)) << file;
  }
}

TEST(QuantState, Q16_Q18_WritesWhatBitsandbytesWrites) {
  for (const char* const file : kFiles) {
    const Tensors want = recorded(file);
    const Tensors got = pack_state(unpack_state_4bit(want, kName), kName);
    EXPECT_EQ(json_of(got), json_of(want));
    for (const auto& [name, tensor] : got) {
      ASSERT_TRUE(want.contains(name)) << name;
      if (name == json_name(got)) continue;
      EXPECT_EQ(tensor.sizes(), want.at(name).sizes()) << name;
      EXPECT_TRUE(same_bits(tensor, want.at(name))) << name;
    }
    for (const auto& [name, tensor] : want)
      if (name.starts_with(kName)) {
        EXPECT_TRUE(got.contains(name)) << name;
      }
  }
}

TEST(QuantState, Q16_HasTheKeysDtypesAndShapesOfALayer) {
  const Quantized4Bit weight =
      quantize_4bit(at::randn({300, 64}).to(at::kHalf), {.compress_statistics = true});
  const Tensors tensors = pack_state(weight, "w");
  ASSERT_EQ(tensors.size(), 6U);
  EXPECT_EQ(tensors.at("w").sizes(), (std::vector<int64_t>{9600, 1}));
  EXPECT_EQ(tensors.at("w.absmax").scalar_type(), at::kByte);
  EXPECT_EQ(tensors.at("w.absmax").sizes(), std::vector<int64_t>{300});
  EXPECT_EQ(tensors.at("w.quant_map").sizes(), std::vector<int64_t>{16});
  EXPECT_EQ(tensors.at("w.nested_absmax").sizes(), std::vector<int64_t>{2});
  EXPECT_EQ(tensors.at("w.nested_quant_map").sizes(), std::vector<int64_t>{256});
  const std::string text = text_of(tensors.at("w.quant_state.bitsandbytes__nf4"));
  EXPECT_THAT(text, testing::StartsWith(R"({"quant_type": "nf4", "blocksize": 64, "dtype": "float16", )"
                                        R"("shape": [300, 64], "nested_blocksize": 256, )"
                                        R"("nested_dtype": "float32", "nested_offset": )"));
  EXPECT_EQ(pack_state(quantize_4bit(at::randn({4})), "w").size(), 4U);
}

TEST(QuantState, Q18_ComesBackAsItWas) {
  for (const bool nested : {false, true})
    for (const Format format : {Format::kNF4, Format::kFP4})
      for (const auto storage : {at::kByte, at::kBFloat16, at::kFloat}) {
        const Quantized4Bit weight =
            quantize_4bit(at::randn({16, 96}).to(at::kHalf), {format, 32, nested, storage});
        Tensors tensors = pack_state(weight, "a.b");
        tensors.emplace("a.bc", at::zeros({1}));  // another tensor with a similar name
        tensors.emplace("a.b2.absmax", at::zeros({1}));
        const Quantized4Bit got = unpack_state_4bit(tensors, "a.b");
        EXPECT_TRUE(same_bits(dequantize_4bit(got), dequantize_4bit(weight)));
        EXPECT_EQ(got.codes.scalar_type(), storage);
        EXPECT_EQ(got.shape, weight.shape);
        EXPECT_EQ(got.blocksize, 32);
        EXPECT_TRUE(has_state_4bit(tensors, "a.b"));
        EXPECT_FALSE(has_state_4bit(tensors, "a"));
        EXPECT_FALSE(has_state_4bit(tensors, "a.bc"));
      }
}

TEST(QuantState, Q19_JsonMayHaveAnyOrderAndSpacing) {
  Tensors tensors = recorded("state_linear4bit_nf4_dq");
  const at::Tensor want = dequantize_4bit(unpack_state_4bit(tensors, kName));
  const auto json = json_of(tensors);
  char offset[40];
  std::snprintf(offset, sizeof offset, "%.20e", json.nested->offset);
  tensors[json_name(tensors)] = bytes_of(
      "\n{ \"shape\" :[32 ,\t64],\"nested_offset\":" + std::string(offset) +
      ",\"dtype\":\"bfloat16\",\"nested_dtype\":\"float32\" ,\"blocksize\":64,\"quant_type\":\"nf4\","
      "\"nested_blocksize\":256}\r\n");
  EXPECT_TRUE(same_bits(dequantize_4bit(unpack_state_4bit(tensors, kName)), want));
}

/// Reads the recorded state after `change`, and returns the error.
template <typename Change>
std::string error_after(const char* file, const Change& change) {
  Tensors tensors = recorded(file);
  change(tensors);
  return error_of([&] { unpack_state_4bit(tensors, kName); });
}

std::string error_of_json(const std::string& text) {
  return error_after("state_linear4bit_nf4_dq", [&](Tensors& t) { t[json_name(t)] = bytes_of(text); });
}

TEST(QuantState, Q19_TwoStatesOrAnotherSuffixAreRefused) {
  const auto after = [](const auto& change) { return error_after("state_linear4bit_nf4_dq", change); };
  EXPECT_THAT(after([](Tensors& t) { t[kName + ".quant_state.bitsandbytes__fp4"] = t[json_name(t)]; }),
              HasSubstr("'layer.weight' has two states"));
  EXPECT_THAT(after([](Tensors& t) {
                t[kName + ".quant_state.bitsandbytes__nf8"] = t[json_name(t)];
                t.erase(kName + ".quant_state.bitsandbytes__nf4");
              }),
              HasSubstr("unknown type"));
  EXPECT_THAT(after([](Tensors& t) {
                t[kName + ".quant_state.bitsandbytes__fp4"] = t[json_name(t)];
                t.erase(kName + ".quant_state.bitsandbytes__nf4");
              }),
              HasSubstr("says that its type is 'nf4'; the two have to agree"));
  EXPECT_THAT(after([](Tensors& t) { t.erase(json_name(t)); }), HasSubstr("is not saved in 4 bits"));
  EXPECT_THAT(after([](Tensors& t) { t[kName + ".absmx"] = at::ones({1}); }),
              HasSubstr("'layer.weight.absmx' is no component of a 4-bit weight; did you mean 'absmax'?"));
  EXPECT_THAT(after([](Tensors& t) { t[kName + ".old.absmax"] = at::ones({1}); }),
              HasSubstr("is no component"));
}

TEST(QuantState, ADamagedTensorIsRefusedByName) {
  const auto after = [](const auto& change) { return error_after("state_linear4bit_nf4_dq", change); };
  for (const std::string part : {"absmax", "quant_map", "nested_absmax", "nested_quant_map"}) {
    EXPECT_THAT(after([&](Tensors& t) { t.erase(kName + "." + part); }), HasSubstr(part)) << "missing";
    EXPECT_THAT(after([&](Tensors& t) { t[kName + "." + part] = at::ones({7}); }),
                HasSubstr("layer.weight." + part + "' has dtype Float and 7 elements"));
    EXPECT_THAT(after([&](Tensors& t) { t[kName + "." + part] = t[kName + "." + part].to(at::kDouble); }),
                HasSubstr("has dtype Double"));
  }
  EXPECT_THAT(after([](Tensors& t) { t[kName + ".nested_absmax"].fill_(NAN); }), HasSubstr("has inf or nan"));
  EXPECT_THAT(after([](Tensors& t) { t[kName + ".quant_map"][3] = 0.5; }),
              HasSubstr("is not the table of nf4"));
  EXPECT_THAT(after([](Tensors& t) { t[kName + ".nested_quant_map"][3] = 0.5; }),
              HasSubstr("signed dynamic map"));
  EXPECT_THAT(after([](Tensors& t) { t.erase(kName); }), HasSubstr("no tensor of that name"));
  EXPECT_THAT(after([](Tensors& t) { t[kName] = t[kName].narrow(0, 0, 1000); }),
              HasSubstr("has 1000 bytes of codes"));
  EXPECT_THAT(after([](Tensors& t) { t[kName] = t[kName].to(at::kInt); }), HasSubstr("has dtype Int"));
  EXPECT_THAT(after([](Tensors& t) { t[json_name(t)] = at::ones({4}); }), HasSubstr("uint8 [bytes]"));
  EXPECT_THAT(
      error_after("state_linear4bit_fp4", [](Tensors& t) { t[kName + ".nested_absmax"] = at::ones({1}); }),
      HasSubstr("disagree about double quantization"));
  EXPECT_THAT(error_after("state_linear4bit_fp4", [](Tensors& t) { t[kName + ".absmax"][0] = HUGE_VALF; }),
              HasSubstr("has inf or nan"));
}

TEST(QuantState, DamagedJsonIsRefused) {
  const std::string head = R"({"quant_type": "nf4", "dtype": "bfloat16", )",
                    nested = R"(, "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 1.5)";
  const auto json = [&](const std::string& blocksize, const std::string& shape, const std::string& rest) {
    return head + R"("blocksize": )" + blocksize + R"(, "shape": )" + shape + rest + "}";
  };
  EXPECT_EQ(error_of_json(json("64", "[32, 64]", nested)), "no error");
  EXPECT_THAT(error_of_json(json("48", "[32, 64]", nested)), HasSubstr("choose 32, 64, 128"));
  EXPECT_THAT(error_of_json(json("64", "[32, 65]", nested)),
              HasSubstr("is that of a tensor of shape [32, 65]"));
  EXPECT_THAT(error_of_json(json("64", "[4294967296, 4294967296, 2]", nested)), HasSubstr("bytes of codes"));
  EXPECT_THAT(error_of_json(json("64", "[-32, -64]", nested)), HasSubstr("a size is negative"));
  EXPECT_THAT(error_of_json(json("64", "[32.5, 64]", nested)), HasSubstr("']' is missing"));
  EXPECT_THAT(error_of_json(json("1e2", "[32, 64]", nested)), HasSubstr("'}' is missing"));
  EXPECT_THAT(error_of_json(json("99999999999999999999", "[32, 64]", nested)), HasSubstr("out of range"));
  EXPECT_THAT(error_of_json(json("64", "null", nested)), HasSubstr("'[' is missing"));
  EXPECT_THAT(error_of_json(json("64", "[32, 64]", "")), HasSubstr("disagree about double quantization"));
  EXPECT_THAT(error_of_json(json("64", "[32, 64]", R"(, "nested_offset": 1)")),
              HasSubstr("some are missing"));
  EXPECT_THAT(error_of_json(json("64", "[32, 64]", nested + R"(, "blocksize": 64)")),
              HasSubstr("is there twice"));
  EXPECT_THAT(error_of_json(json("64", "[32, 64]", nested + R"(, "extra": 1)")),
              HasSubstr("'extra' is unknown"));
  EXPECT_THAT(error_of_json(json("64", "[32, 64]", nested) + "x"), HasSubstr("something follows"));
  EXPECT_THAT(error_of_json(R"({"quant_\u0074ype": "nf4"})"), HasSubstr("has an escape"));
  for (const char* const text : {"", "{", "{\"", "nf4", "[]"})
    EXPECT_THAT(error_of_json(text), HasSubstr("missing"));
  EXPECT_THAT(error_of_json("{}"), HasSubstr("it needs quant_type"));

  const auto with_nested = [&](const std::string& blocksize, const std::string& dtype,
                               const std::string& offset) {
    return error_of_json(json("64", "[32, 64]",
                              R"(, "nested_blocksize": )" + blocksize + R"(, "nested_dtype": ")" + dtype +
                                  R"(", "nested_offset": )" + offset));
  };
  EXPECT_THAT(with_nested("128", "float32", "1"), HasSubstr("only blocks of 256 values"));
  EXPECT_THAT(with_nested("256", "float16", "1"), HasSubstr("only blocks of 256 values"));
  EXPECT_THAT(with_nested("256", "float32", "1e300"), HasSubstr("beyond the range of float32"));
  EXPECT_THAT(with_nested("256", "float32", "1e999"), HasSubstr("out of range"));
  EXPECT_THAT(with_nested("256", "float32", "nan"), HasSubstr("not finite"));
  EXPECT_THAT(with_nested("256", "float32", "NaN"), HasSubstr("not finite"));
}

TEST(QuantState, AnOffsetIsReadBackAsTheSameNumber) {
  for (const double offset : {0.0, 2.0, 1e-30, 0.1, 2.2191154956817627, 3.4028234663852886e38}) {
    const quant::QuantStateJson state{"nf4", 64, "float32", {3, 5}, {{256, "float32", offset}}};
    EXPECT_EQ(quant::parse_quant_state_json(to_json(state), "x"), state) << to_json(state);
  }
  const quant::QuantStateJson scalar{"fp4", 32, "float16", {}, {}};
  EXPECT_EQ(to_json(scalar), R"({"quant_type": "fp4", "blocksize": 32, "dtype": "float16", "shape": []})");
  EXPECT_EQ(quant::parse_quant_state_json(to_json(scalar), "x"), scalar);
}

}  // namespace
}  // namespace mantissa::quant_state_test
