#include "mantissa/io/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::safetensors_header_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string error_of(const std::string& json, uint64_t data_bytes) {
  try {
    parse_safetensors_header(json, data_bytes, "some.file");
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}
std::string one(const std::string& value) { return R"({"w":)" + value + "}"; }
std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }
/// Returns the JSON of a shape with `count` dimensions of size 1.
std::string dimensions(size_t count) {
  std::string ones = "[1";
  for (size_t i = 1; i < count; ++i) ones += ",1";
  return ones + "]";
}

struct BadHeader {
  const char* name;
  std::string json;
  uint64_t data_bytes;
  const char* message;
};

class BadHeaders : public testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaders, NamesFileTensorAndWhatIsWrong) {
  const std::string message = error_of(GetParam().json, GetParam().data_bytes);
  EXPECT_THAT(message, AllOf(HasSubstr("safetensors file 'some.file'"), HasSubstr(GetParam().message)));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
}

const std::string kTwo63 = "9223372036854775808", kTwo62 = "4611686018427387904";

const BadHeader kBadHeaders[] = {
    {"Empty", "", 0, "does not begin with '{'"},
    {"SpaceFirst", " {}", 0, "does not begin with '{'"},
    {"List", "[]", 0, "does not begin with '{'"},
    {"CutJson", R"({"w":{"dtype":"F32")", 4, "not valid JSON"},
    {"TextAfterJson", "{} x", 0, "not valid JSON"},
    {"NotUtf8", "{\"\xff\":1}", 0, "not valid JSON"},
    {"HugeNumber", one("1e999"), 0, "not valid JSON"},
    {"NestedDeep", one(std::string(100'000, '[')), 0, "nests deeper"},
    {"Nested9Levels", one(nested(8)), 0, "nests deeper"},
    {"Nested8Levels", one(nested(7)), 0, "must be an object"},
    {"Dimensions64", one(entry("U8", dimensions(64), "[0,2]")), 2, "make 1 bytes, but data_offsets hold 2"},
    {"ThreeOffsets", one(entry("U8", "[1]", "[0,1,1]")), 1, "list of begin and end"},
    {"OffsetsAreText", one(entry("U8", "[1]", "\"01\"")), 1, "list of begin and end"},
    {"OffsetIsFraction", one(entry("U8", "[1]", "[0,1.5]")), 1, "data_offsets must hold whole numbers"},
    {"RepeatedName",
     R"({"w":)" + entry("U8", "[1]", "[0,1]") + R"(,"w":)" + entry("U8", "[1]", "[0,1]") + "}", 1,
     "names 'w' twice"},
    {"RepeatedField", one(R"({"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]})"), 1,
     "names 'dtype' twice"},
    {"EntryIsNumber", one("3"), 0, "tensor 'w': its entry in the header must be an object"},
    {"UnknownField", one(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0})"), 1, "unknown field 'x'"},
    {"NoShape", one(R"({"dtype":"U8","data_offsets":[0,1]})"), 1, "tensor 'w': the field 'shape' is missing"},
    {"DtypeIsNumber", one(R"({"dtype":1,"shape":[1],"data_offsets":[0,1]})"), 1, "dtype must be a string"},
    {"UnknownDtype", one(entry("F4", "[1]", "[0,1]")), 1,
     "tensor 'w': dtype 'F4' is not one that libtorch can hold"},
    {"ShapeIsNumber", one(entry("U8", "1", "[0,1]")), 1, "shape must be a list"},
    {"NegativeSize", one(entry("U8", "[-1]", "[0,1]")), 1,
     "shape must hold whole numbers from 0 to 2^64 - 1, but holds -1"},
    {"FractionalSize", one(entry("U8", "[1.0]", "[0,1]")), 1, "but holds 1.0"},
    {"SizeOf63Bits", one(entry("U8", "[" + kTwo63 + "]", "[0,1]")), 1, "overflows 63 bits"},
    {"ProductOverflows", one(entry("U8", "[" + kTwo62 + ",2]", "[0,1]")), 1,
     "product of its shape overflows"},
    {"EmptyProductOverflows", one(entry("U8", "[0," + kTwo62 + ",2]", "[0,0]")), 0,
     "product of its shape overflows"},
    {"BytesOverflow", one(entry("F64", "[" + kTwo62 + "]", "[0,1]")), 1, "size in bytes overflows"},
    {"TooManyDimensions", one(entry("U8", dimensions(65), "[0,1]")), 1, "65 dimensions"},
    {"OneOffset", one(entry("U8", "[1]", "[0]")), 1, "list of begin and end"},
    {"NegativeOffset", one(entry("U8", "[1]", "[-1,0]")), 1, "data_offsets must hold whole numbers"},
    {"EndBeforeBegin", one(entry("U8", "[1]", "[1,0]")), 1, "before they begin"},
    {"SizeMismatch", one(entry("F32", "[2,3]", "[0,23]")), 23, "make 24 bytes, but data_offsets hold 23"},
    {"SizeMismatchFurtherOn",
     R"({"a":)" + entry("U8", "[2]", "[0,2]") + R"(,"b":)" + entry("F32", "[1]", "[2,5]") + "}", 5,
     "tensor 'b': dtype and shape make 4 bytes, but data_offsets hold 3"},
    {"Truncated", one(entry("F32", "[2]", "[0,8]")), 7,
     "truncated: its header promises 8 bytes of tensors, but only 7"},
    {"TrailingBytes", one(entry("F32", "[2]", "[0,8]")), 9,
     "1 bytes after the last tensor belong to no tensor"},
    {"HoleAtStart", one(entry("F32", "[2]", "[4,12]")), 12,
     "the 4 bytes before it, from 0, belong to no tensor"},
    {"Hole", R"({"a":)" + entry("U8", "[2]", "[0,2]") + R"(,"b":)" + entry("U8", "[1]", "[3,4]") + "}", 4,
     "tensor 'b': the 1 bytes before it, from 2"},
    {"Overlap", R"({"a":)" + entry("U8", "[2]", "[0,2]") + R"(,"b":)" + entry("U8", "[2]", "[1,3]") + "}", 3,
     "tensor 'b': its bytes from 1 overlap those of another tensor, which end at 2"},
    {"SameBytesTwice",
     R"({"a":)" + entry("U8", "[2]", "[0,2]") + R"(,"b":)" + entry("U8", "[2]", "[0,2]") + "}", 2, "overlap"},
    {"EmptyTensorInsideAnother",
     R"({"a":)" + entry("U8", "[2]", "[0,2]") + R"(,"b":)" + entry("U8", "[0]", "[1,1]") + "}", 2, "overlap"},
    {"DataWithoutTensors", "{}", 5, "5 bytes after the last tensor"},
    {"MetadataIsList", R"({"__metadata__":[]})", 0, "__metadata__ must be an object"},
    {"MetadataIsNumber", R"({"__metadata__":{"step":3}})", 0, "the metadata 'step' must be a string"},
    {"ControlInName", "{\"a\\u000ab\":3}", 0, "tensor 'a?b'"},
};

// The time is proportional to the number of tensors; if it grew with the square, this would take hours.
TEST(SafetensorsHeader, ReadsHundredsOfThousandsOfTensors) {
  constexpr size_t kTensors = 300'000;
  std::string text = "{";
  for (size_t i = 0; i < kTensors; ++i)
    text += (i == 0 ? "\"layer." : ",\"layer.") + std::to_string(i) +
            "\":" + entry("U8", "[1]", "[" + std::to_string(i) + "," + std::to_string(i + 1) + "]");
  const SafetensorsHeader header = parse_safetensors_header(text + "}", kTensors, "some.file");
  EXPECT_EQ(header.tensors.size(), kTensors);
  EXPECT_EQ(header.tensors.at("layer.299999").begin, kTensors - 1);
  // Errors are found as fast, too, wherever they are.
  EXPECT_THAT(error_of(text + ",\"layer.0\":0}", kTensors), HasSubstr("names 'layer.0' twice"));
  EXPECT_THAT(error_of(text + "}", kTensors - 1), HasSubstr("truncated"));
}

INSTANTIATE_TEST_SUITE_P(All, BadHeaders, testing::ValuesIn(kBadHeaders),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SafetensorsHeader, ReadsEveryField) {
  const SafetensorsHeader header = parse_safetensors_header(
      R"({"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"__metadata__":{"format":"pt","":""},)"
      R"("a":{"shape":[],"data_offsets":[12,13],"dtype":"BOOL"},"e":{"dtype":"F64","shape":[0,5],"data_offsets":[12,12]}}  )",
      13, "f");
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors.at("b").dtype, at::kBFloat16);
  EXPECT_EQ(header.tensors.at("b").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header.tensors.at("a").begin, 12u);
  EXPECT_TRUE(header.tensors.at("a").shape.empty());
  EXPECT_EQ(header.tensors.at("e").shape, (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"", ""}}));
}

TEST(SafetensorsHeader, ASizeMayHave63Bits) {
  const std::string most = std::to_string(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(error_of(one(entry("U8", "[0," + most + "]", "[0,0]")), 0), "no error");
}

// No prefix of a good header and no single wrong byte may crash or hang; most are refused.
TEST(SafetensorsHeader, SurvivesEveryCutAndEveryChangedByte) {
  const std::string good =
      R"({"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"__metadata__":{"k":"v"}})";
  EXPECT_EQ(error_of(good, 8), "no error");
  for (size_t n = 0; n < good.size(); ++n) EXPECT_NE(error_of(good.substr(0, n), 8), "no error") << n;
  size_t refused = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    for (int c = 0; c < 256; ++c) {
      std::string bad = good;
      bad[i] = char(c);
      refused += error_of(bad, 8) != "no error";
    }
  }
  EXPECT_GT(refused, good.size() * 200);
}

TEST(SafetensorsHeader, WritesWidestFirstThenByName) {
  SafetensorsHeader header;
  header.tensors = {
      {"a", {at::kHalf, {3}, 0, 0}}, {"c", {at::kFloat, {}, 0, 0}}, {"b", {at::kFloat, {2}, 0, 0}}};
  std::vector<std::string> order;
  const std::string text = make_safetensors_header(header, order);
  EXPECT_EQ(order, (std::vector<std::string>{"b", "c", "a"}));
  EXPECT_EQ(text.size() % 8, 0u);
  EXPECT_THAT(text, HasSubstr(R"("a":{"dtype":"F16","shape":[3],"data_offsets":[12,18]}})"));
  EXPECT_EQ(parse_safetensors_header(text, 18, "f").tensors.at("c").begin, 8u);
}

TEST(SafetensorsHeader, IsPaddedToEightBytesAndNoFurther) {
  for (size_t n = 1; n <= 16; ++n) {
    SafetensorsHeader header;
    header.tensors[std::string(n, 'w')] = {at::kByte, {1}, 0, 0};
    std::vector<std::string> order;
    const std::string text = make_safetensors_header(header, order);
    EXPECT_EQ(text.size() % 8, 0U) << n;
    EXPECT_LT(text.size() - text.find_last_not_of(' '), 9U) << n;
  }
}

TEST(SafetensorsHeader, MayBeAsLongAsTheFormatAllows) {
  const std::string around = R"({"__metadata__":{"k":""}})";
  std::vector<std::string> order;
  SafetensorsHeader header;
  header.metadata["k"] = std::string(kSafetensorsMaxHeaderBytes - around.size(), 'x');
  EXPECT_EQ(make_safetensors_header(header, order).size(), kSafetensorsMaxHeaderBytes);
  header.metadata["k"] += 'x';
  EXPECT_THAT(mantissa::error_of([&] { make_safetensors_header(header, order); }),
              HasSubstr("is over the format's limit of 100000000"));
}

TEST(SafetensorsHeader, RefusesToWriteWhatNoReaderAccepts) {
  const auto error = [](SafetensorsHeader header) {
    std::vector<std::string> order;
    try {
      make_safetensors_header(header, order);
    } catch (const c10::ValueError& e) {
      return std::string(e.what_without_backtrace());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error({{{"__metadata__", {}}}, {}}), HasSubstr("rename it"));
  EXPECT_THAT(error({{{"z", {at::kComplexDouble, {1}, 0, 0}}}, {}}),
              HasSubstr("tensor 'z' is ComplexDouble"));
  EXPECT_THAT(error({{{"\xff", {}}}, {}}), HasSubstr("not valid UTF-8"));
  EXPECT_THAT(error({{}, {{"k", "\xff"}}}), HasSubstr("not valid UTF-8"));
}

}  // namespace
}  // namespace mantissa::safetensors_header_test
