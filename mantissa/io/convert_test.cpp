#include "mantissa/io/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <unistd.h>

#include <torch/torch.h>

namespace mantissa::convert_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Convert : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "mantissa-convert-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// Converts into folder_/out and returns the losses.
  std::map<std::string, CastLoss> convert(const Conversion& conversion, uint64_t max_shard_bytes = 0,
                                          const std::function<void(uint64_t)>& after_piece = {}) const {
    const SafetensorsModel model(folder_ / "in.safetensors");
    const auto header = converted_header(model, conversion, model.metadata());
    return convert_safetensors(model, conversion,
                               lay_out_safetensors(folder_ / "out", header, max_shard_bytes), after_piece);
  }

  fs::path folder_;
};

TEST_F(Convert, CountsWhatACastLoses) {
  const at::Tensor x = at::tensor({70000.f, 1e-10f, 1.f, -1e30f, std::numeric_limits<float>::quiet_NaN()});
  save_safetensors(folder_ / "in.safetensors", {{"x", x}, {"y", x}, {"n", at::arange(3)}}, {{"k", "v"}});
  const auto losses =
      convert({{"half", {"x", at::kHalf}}, {"x", {"y", at::kFloat}}, {"ids", {"n", at::kLong}}});
  ASSERT_EQ(losses.size(), 1U);
  EXPECT_EQ(losses.at("half").values, 5);
  EXPECT_EQ(losses.at("half").overflowed, 2);
  EXPECT_EQ(losses.at("half").flushed, 1);
  const Safetensors out = load_safetensors(folder_ / "out/model.safetensors");
  EXPECT_EQ(out.metadata, (std::map<std::string, std::string>{{"k", "v"}}));
  EXPECT_TRUE(at::equal(out.tensors.at("half").view(at::kShort), x.to(at::kHalf).view(at::kShort)));
  EXPECT_TRUE(at::equal(out.tensors.at("x").view(at::kInt), x.view(at::kInt)));
  EXPECT_TRUE(at::equal(out.tensors.at("ids"), at::arange(3)));
}

// Tensors of several pieces with an odd tail, and empty and 0-dim ones.
TEST_F(Convert, EveryPairOfDtypesAndSizes) {
  at::manual_seed(3);
  const int64_t large = kConversionPieceBytes / 8 + 17;
  const std::map<std::string, at::Tensor> tensors{
      {"large", at::randn({large}) * 20}, {"scalar", at::full({}, 3.5)}, {"empty", at::empty({0, 4})}};
  const std::vector<at::ScalarType> dtypes{at::kDouble,   at::kFloat,         at::kHalf,
                                           at::kBFloat16, at::kFloat8_e4m3fn, at::kFloat8_e5m2};
  for (const at::ScalarType from : dtypes) {
    std::map<std::string, at::Tensor> in;
    for (const auto& [name, tensor] : tensors) in[name] = tensor.to(from);
    save_safetensors(folder_ / "in.safetensors", in);
    for (const at::ScalarType to : dtypes) {
      Conversion conversion;
      for (const auto& [name, tensor] : in) conversion[name] = {name, to};
      convert(conversion);
      const Safetensors out = load_safetensors(folder_ / "out/model.safetensors");
      for (const auto& [name, tensor] : in) {
        const at::Tensor want = tensor.to(to), &got = out.tensors.at(name);
        EXPECT_EQ(got.scalar_type(), to);
        EXPECT_EQ(got.sizes(), want.sizes());
        EXPECT_TRUE(at::equal(got.reshape({-1}).view(at::kByte), want.reshape({-1}).view(at::kByte)))
            << from << " to " << to << ", " << name;
      }
    }
  }
}

TEST_F(Convert, TellsHowManyBytesItHasRead) {
  save_safetensors(folder_ / "in.safetensors", {{"a", at::ones({100})}, {"b", at::ones({3}, at::kHalf)}});
  std::vector<uint64_t> told;
  convert({{"a", {"a", at::kFloat}}, {"b", {"b", at::kHalf}}}, 0,
          [&](uint64_t bytes_read) { told.push_back(bytes_read); });
  EXPECT_EQ(told, (std::vector<uint64_t>{400, 406}));
}

TEST_F(Convert, AThrowInTheMiddleLeavesNothing) {
  save_safetensors(folder_ / "in.safetensors", {{"a", at::ones({100})}, {"b", at::ones({100})}});
  EXPECT_THROW(convert({{"a", {"a", at::kHalf}}, {"b", {"b", at::kHalf}}}, 200,
                       [](uint64_t bytes_read) {
                         if (bytes_read >= 400) throw std::runtime_error("stop");
                       }),
               std::runtime_error);
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(Convert, RefusesWhatIsNoCast) {
  save_safetensors(folder_ / "in.safetensors", {{"n", at::arange(3)}, {"x", at::ones({1})}});
  const auto error = [&](const Conversion& conversion) {
    try {
      convert(conversion);
    } catch (const c10::ValueError& e) {
      return std::string(e.what_without_backtrace());
    }
    return std::string("no error");
  };
  EXPECT_THAT(error({{"n", {"n", at::kHalf}}}), HasSubstr("tensor 'n' is Long, which is not cast to Half"));
  EXPECT_THAT(error({{"y", {"y", at::kHalf}}}), HasSubstr("no tensor 'y'"));
}

}  // namespace
}  // namespace mantissa::convert_test
