#include "mantissa/io/manifest.h"

#include <bit>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/io/checkpoint_test_support_internal.h"

namespace mantissa::manifest_test {
namespace {

using testing::HasSubstr;

/// Returns a manifest with this state in which `from` was replaced by `to`.
std::string text_with(const std::string& from, const std::string& to) {
  Manifest manifest;
  manifest.step = 12;
  manifest.files["state.safetensors"] = {10, std::string(32, '0')};
  manifest.weights["w"] = at::ones({2, 3});
  manifest.state = {{"x", at::ones({4})}, {"lr", 0.5}};
  manifest.tensor_names = {"x"};
  std::string text = make_manifest(manifest);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string error_with(const std::string& from, const std::string& to) {
  return error_of([&] { parse_manifest(text_with(from, to), "m.json", /*verify_checksum=*/false); });
}

TEST(Manifest, ReadsWhatItWrote) {
  const Manifest manifest = parse_manifest(text_with("", ""), "m.json");
  EXPECT_EQ(manifest.step, 12);
  EXPECT_EQ(manifest.files.at("state.safetensors").bytes, 10u);
  EXPECT_EQ(manifest.weights.at("w").sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(manifest.tensor_names, std::vector<std::string>{"x"});
  EXPECT_EQ(StateReader(manifest.state).at("lr").to_double(), 0.5);
  // Any version may have written it.
  const std::string other = text_with("\"mantissa\": \"", "\"mantissa\": \"other-");
  EXPECT_THAT(parse_manifest(other, "m.json", /*verify_checksum=*/false).mantissa_version,
              testing::StartsWith("other-"));
}

TEST(Manifest, KeepsNumbersBitForBit) {
  Manifest manifest;
  manifest.state = {{"numbers", *a_checkpoint(1).state.find("numbers")->second.get_if<StateList>()}};
  for (uint64_t i = 1; i < 20'000; ++i) {
    // Doubles of every size, including NaNs with payloads.
    const double number = std::bit_cast<double>(i * 0x9E3779B97F4A7C15ULL);
    manifest.state.insert_or_assign(c10::str("n", i % 500), number);
    if (i % 500 == 0) {
      const Manifest read = parse_manifest(make_manifest(manifest), "m.json");
      ASSERT_EQ(difference(read.state, manifest.state), "");
    }
  }
  manifest.state = {{"nan", std::bit_cast<double>(uint64_t{0xfff800000000beef})}};
  EXPECT_THAT(make_manifest(manifest), HasSubstr("\"$double\": \"0xfff800000000beef\""));
  EXPECT_EQ(difference(parse_manifest(make_manifest(manifest), "m.json").state, manifest.state), "");
}

TEST(Manifest, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(
      error_with("\"version\": 1", "\"version\": 2"),
      "checkpoint manifest 'm.json': its format version is 2, and only version 1 is known here; read it "
      "with the Mantissa that wrote it, or a newer one");
  EXPECT_THAT(error_with("mantissa-checkpoint", "other"), HasSubstr("it is not a manifest of a checkpoint"));
  EXPECT_EQ(
      error_with("\"step\": 12,", ""),
      "checkpoint manifest 'm.json': the field 'step' is missing; it is damaged: take another checkpoint");
  EXPECT_EQ(error_with("\"step\": 12", "\"step\": -1"),
            "checkpoint manifest 'm.json', step: is -1; it must be 0 or more; it is damaged: take another "
            "checkpoint");
  EXPECT_THAT(error_with("\"step\": 12", "\"step\": 9223372036854775807"),
              HasSubstr("step: is 9223372036854775807; it must be at most 9007199254740992"));
  EXPECT_THAT(error_with("\"written_unix_ms\": 0", "\"written_unix_ms\": -1"),
              HasSubstr("written_unix_ms: is -1; it must be 0 or more"));
  EXPECT_THAT(error_with("\"written_unix_ms\": 0", "\"written_unix_ms\": 9223372036854775807"),
              HasSubstr("written_unix_ms: is 9223372036854775807; it must be at most 253402300799999"));
  EXPECT_THAT(error_with("\"step\": 12", "\"step\": 12.0"), HasSubstr("step: must be a whole number"));
  EXPECT_THAT(error_with("\"step\": 12", "\"step\": 9223372036854775808"),
              HasSubstr("step: is above 2^63 - 1"));
  EXPECT_THAT(error_with("\"step\": 12", "\"step\": 1e999"), HasSubstr("is not valid JSON"));
  EXPECT_THAT(error_with("\"step\": 12", "\"step\": 12, \"steps\": 1"), HasSubstr("unknown field 'steps'"));
  EXPECT_THAT(error_with("\"step\": 12", "\"step\": 12, \"step\": 13"), HasSubstr("names 'step' twice"));
  EXPECT_THAT(error_with("\"bytes\": 10", "\"bytes\": -10"),
              HasSubstr("files.state.safetensors.bytes: is -10"));
  EXPECT_THAT(error_with("\"bytes\": 10,", ""),
              HasSubstr("files.state.safetensors: the field 'bytes' is missing"));
  EXPECT_THAT(error_with("\"lr\": 0.5", "\"lr\": 18446744073709551615"),
              HasSubstr("state.lr: is above 2^63 - 1"));
  EXPECT_THAT(error_with("\"lr\": 0.5", "\"$lr\": 0.5"), HasSubstr("state: the name '$lr' is unknown"));
  EXPECT_THAT(error_with("\"lr\": 0.5", "\"lr\": {\"$double\": \"0x7ff\"}"),
              HasSubstr("state.lr: '$double' must"));
  EXPECT_THAT(error_with("\"lr\": 0.5", "\"lr\": {\"$double\": \"0x7ff000000000000g\"}"),
              HasSubstr("must hold"));
  EXPECT_THAT(error_with("\"lr\": 0.5", "\"lr\": {\"$double\": 3}"), HasSubstr("state.lr: must be a string"));
  EXPECT_THAT(error_with("\"lr\": 0.5", "\"lr\": {\"$double\": \"0x0\", \"b\": 1}"),
              HasSubstr("unknown field 'b'"));
}

TEST(Manifest, RefusesTensorsThatCannotBe) {
  const std::string dtype = "\"dtype\": \"F32\"";
  EXPECT_THAT(error_with(dtype, "\"dtype\": \"F31\""), HasSubstr("the dtype 'F31' is unknown"));
  EXPECT_THAT(error_with(dtype, "\"dtype\": 4"), HasSubstr("weights.w.dtype: must be a string"));
  EXPECT_THAT(error_with(dtype, dtype + ", \"data\": 0"), HasSubstr("weights.w: unknown field 'data'"));
  const auto with_state = [](const std::string& x) { return error_with("\"lr\": 0.5", "\"lr\": " + x); };
  const auto tensor = [](const std::string& name, const std::string& shape) {
    return R"({"$tensor": ")" + name + R"(", "dtype": "F32", "shape": )" + shape + "}";
  };
  EXPECT_EQ(with_state(tensor("y", "[3]")), "no error");
  EXPECT_THAT(with_state(tensor("x", "[3]")), HasSubstr("the tensor 'x' is named twice"));
  EXPECT_THAT(with_state(R"({"$tensor": "y", "dtype": "F32", "shape": [3], "data": 0})"),
              HasSubstr("state.lr: unknown field 'data'"));
  EXPECT_THAT(with_state(tensor("y", "[-3]")), HasSubstr("state.lr.shape: is -3"));
  EXPECT_THAT(with_state(tensor("y", "3")), HasSubstr("'shape' must be a list"));
  EXPECT_THAT(with_state(tensor("y", "[4611686018427387904, 2]")), HasSubstr("overflows 63 bits"));
  EXPECT_THAT(with_state(tensor("y", "[0, 4611686018427387904, 2]")), HasSubstr("overflows 63 bits"));
  std::string ones = "1";
  for (int i = 0; i < 64; ++i) ones += ",1";
  EXPECT_THAT(with_state(tensor("y", "[" + ones + "]")), HasSubstr("at most 64"));
  EXPECT_THAT(with_state(R"({"$tensor": "y", "shape": []})"), HasSubstr("the field 'dtype' is missing"));
  EXPECT_THAT(with_state(R"({"$tensor": 3, "dtype": "F32", "shape": []})"), HasSubstr("must be a string"));
}

TEST(Manifest, ReadsWhatIsAtItsLimits) {
  std::string ones = "1";
  for (int i = 1; i < 64; ++i) ones += ",1";
  const std::string tensor = R"({"$tensor": "y", "dtype": "F32", "shape": [)" + ones + "]}";
  EXPECT_EQ(error_with("\"lr\": 0.5", "\"lr\": " + tensor), "no error");
  EXPECT_EQ(error_with("\"step\": 12", "\"step\": 9007199254740992"), "no error");
  EXPECT_EQ(error_with("\"step\": 12", "\"step\": 0"), "no error");
  EXPECT_EQ(error_with("\"written_unix_ms\": 0", "\"written_unix_ms\": 253402300799999"), "no error");
  EXPECT_EQ(error_with("\"lr\": 0.5", "\"lr\": 9223372036854775807"), "no error");
  EXPECT_THAT(error_with("\"step\": 12", "\"step\": 9007199254740993"), HasSubstr("must be at most"));
  EXPECT_THAT(error_with("\"written_unix_ms\": 0", "\"written_unix_ms\": 253402300800000"),
              HasSubstr("must be at most"));
}

TEST(Manifest, EveryFieldHasItsKind) {
  const std::string files =
      R"("state.safetensors": {
   "bytes": 10,
   "xxh3_128": "00000000000000000000000000000000"
  })";
  EXPECT_THAT(error_with("\"bytes\": 10", "\"bytes\": \"10\""), HasSubstr("bytes: must be a whole number"));
  EXPECT_THAT(error_with("\"bytes\": 10", "\"bytes\": 10, \"b\": 1"), HasSubstr("unknown field 'b'"));
  EXPECT_THAT(error_with("\"xxh3_128\": \"0", "\"xxh3_128\": 1, \"x\": \"0"), HasSubstr("field 'x'"));
  EXPECT_THAT(error_with("\"libtorch\": \"", "\"libtorch\": 2, \"x\": \""), HasSubstr("unknown field 'x'"));
  const auto root = [](const std::string& files, const std::string& weights, const std::string& state) {
    const std::string text =
        R"({"format": "mantissa-checkpoint", "version": 1, "mantissa": "0", "libtorch": "2",)"
        R"("step": 1, "written_unix_ms": 1, "files": )" +
        files + R"(, "weights": )" + weights + R"(, "state": )" + state + "}";
    return error_of([&] { parse_manifest(text, "m.json", /*verify_checksum=*/false); });
  };
  EXPECT_EQ(root("{}", "{}", "{}"), "no error");
  EXPECT_THAT(root("[]", "{}", "{}"), HasSubstr("files: must be an object"));
  EXPECT_THAT(root("{\"a\": 3}", "{}", "{}"), HasSubstr("files.a: must be an object"));
  EXPECT_THAT(root("{}", "3", "{}"), HasSubstr("weights: must be an object"));
  EXPECT_THAT(root("{}", "{\"w\": []}", "{}"), HasSubstr("weights.w: must be an object"));
  EXPECT_THAT(root("{}", "{}", "null"), HasSubstr("state: must be an object"));
}

TEST(Manifest, RefusesToWriteWhatItCannotHold) {
  Manifest manifest;
  manifest.weights["w"] = at::quantize_per_tensor(at::ones({2}), 1, 0, at::kQInt8);
  EXPECT_THAT(error_of([&] { make_manifest(manifest); }),
              HasSubstr("save_checkpoint: weight 'w': a tensor of dtype QInt8 cannot be stored in a file"));
  manifest.weights = {{"\xff", at::ones({2})}};
  EXPECT_THAT(error_of([&] { make_manifest(manifest); }), HasSubstr("not valid UTF-8"));
}

TEST(Manifest, NamesOfTensorsAreUnique) {
  const StateDict state{{"__metadata__", at::ones({1})},
                        {"a", StateDict{{"b", at::ones({2})}, {"b'", at::ones({3})}}},
                        {"a.b", at::ones({4})},
                        {"list", StateList{at::ones({5}), 3, at::ones({6})}}};
  std::vector<std::string> names;
  for (const auto& [name, tensor] : named_tensors(state)) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"__metadata__'", "a.b", "a.b'", "a.b''", "list.0", "list.2"}));
}

// Lists and dictionaries count alike.
TEST(Manifest, LimitsTheDepthOfWhatIsWritten) {
  const auto error = [](int depth, bool dicts) {
    StateValue value = at::ones({1});
    for (int i = 1; i < depth; ++i)
      value = dicts ? StateValue(StateDict{{"k", value}}) : StateValue(StateList{value});
    return error_of([&] { named_tensors({{"x", value}}); });
  };
  for (const bool dicts : {false, true}) {
    EXPECT_EQ(error(kMaxStateDepth, dicts), "no error");
    EXPECT_THAT(error(kMaxStateDepth + 1, dicts),
                HasSubstr("the state nests deeper than 64 levels; flatten it"));
  }
}

TEST(Manifest, LimitsTheDepth) {
  const auto nested = [](size_t depth) {
    return error_with("\"lr\": 0.5", "\"lr\": " + std::string(depth, '[') + std::string(depth, ']'));
  };
  EXPECT_EQ(nested(66), "no error");  // 68 levels with the root and the state
  EXPECT_THAT(nested(67), HasSubstr("nests deeper than the format allows"));
  EXPECT_THAT(nested(1'000'000), HasSubstr("nests deeper than the format allows"));
  EXPECT_THAT(error_of([] { parse_manifest(std::string(1'000'000, '['), "m.json"); }), HasSubstr("deeper"));
}

TEST(Manifest, TextsThatAreNone) {
  for (const char* text : {"", "{", "[]", "null", "\xff\xfe", "{}", "3", "{\"format\": 1}"}) {
    EXPECT_NE(error_of([&] { parse_manifest(text, "m.json"); }), "no error") << text;
    EXPECT_NE(error_of([&] { parse_manifest(text, "m.json", false); }), "no error") << text;
  }
}

TEST(Manifest, ItsOwnChecksumStandsAtTheEnd) {
  const std::string text = text_with("", "");
  EXPECT_THAT(text, testing::StartsWith("{\n \"format\": \"mantissa-checkpoint\",\n \"version\": 1,\n"));
  EXPECT_THAT(text, testing::EndsWith("\"\n}\n"));
  EXPECT_EQ(text.substr(text.size() - 52, 16), ",\n \"xxh3_128\": \"");
  EXPECT_EQ(text.find('\0'), std::string::npos) << "many readers of JSON stop there";
  EXPECT_THAT(error_of([&] { parse_manifest(text_with("\"step\": 12", "\"step\": 13"), "m.json"); }),
              testing::ContainsRegex("its checksum is [0-9a-f]{32}, and it was written with"));
  const std::string otherwise_ended = text.substr(0, text.size() - 4) + "\"}\n\n";
  const std::string too_short = R"({"version": 1, "format": "mantissa-checkpoint")"
                                "\n}\n";
  for (const std::string& refused : {text + " ", otherwise_ended, too_short})
    EXPECT_THAT(error_of([&] { parse_manifest(refused, "m.json"); }),
                HasSubstr("its last 52 bytes must hold its checksum"));
}

}  // namespace
}  // namespace mantissa::manifest_test
