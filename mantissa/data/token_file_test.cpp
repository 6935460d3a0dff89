#include "mantissa/data/token_file.h"

#include <cstring>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/data/loader.h"

namespace mantissa::token_file_test {
namespace {

using testing::HasSubstr;

class TokenFiles : public InFolder {
 protected:
  std::filesystem::path file(const std::string& content) {
    std::ofstream(folder_ / "f.bin", std::ios::binary) << content;
    return folder_ / "f.bin";
  }
  std::shared_ptr<const TokenFile> written(const at::Tensor& tokens,
                                           TokenFormat format = TokenFormat::kUint16) {
    write_token_file(folder_ / "t.bin", tokens, format);
    return std::make_shared<TokenFile>(folder_ / "t.bin");
  }
  std::string refusal(const std::string& content, TokenFormat form = TokenFormat::kUint16) {
    return error_of<c10::ValueError>([&] { TokenFile(file(content), form); });
  }
};

std::string header(uint32_t magic, uint32_t version, uint32_t count, size_t bytes = 1024) {
  std::string head(1024, '\0');
  const uint32_t numbers[] = {magic, version, count};
  std::memcpy(head.data(), numbers, sizeof numbers);
  return head.substr(0, bytes);
}

at::Tensor row(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

TEST_F(TokenFiles, RefusesWhatIsNoTokenFile) {
  EXPECT_THAT(error_of([&] { TokenFile(folder_ / "none"); }), HasSubstr("none': No such file"));
  EXPECT_THAT(error_of([&] { TokenFile f(folder_); }), HasSubstr("not a regular file"));
  EXPECT_THAT(refusal(""), HasSubstr("f.bin' is empty; give"));
  EXPECT_THAT(refusal("abc"), HasSubstr("its 3 bytes are no whole number of ids of 16 bits; copy"));
  EXPECT_THAT(refusal("abcdef", TokenFormat::kUint32),
              HasSubstr("its 6 bytes are no whole number of ids of 32 bits"));
  EXPECT_THAT(refusal("abcd", TokenFormat::kGpt2), HasSubstr("choose kUint16 or kUint32"));
  EXPECT_THAT(refusal("abcd", TokenFormat::kLlama3), HasSubstr("choose kUint16 or kUint32"));
}

TEST_F(TokenFiles, RefusesHeadersThatDoNotFit) {
  EXPECT_THAT(refusal(header(20240520, 1, 2, 4)), HasSubstr("cut off after 4 of 1024 bytes"));
  EXPECT_THAT(refusal(header(20240520, 1, 2, 1023)), HasSubstr("cut off after 1023 of 1024 bytes"));
  EXPECT_THAT(refusal(header(20240520, 7, 2) + "abcd"), HasSubstr("version 7, and only version 1"));
  EXPECT_THAT(refusal(header(20240801, 1, 1) + "abcd"), HasSubstr("version 1, and only version 7"));
  EXPECT_THAT(refusal(header(20240520, 1, 2) + "abc"),
              HasSubstr("counts 2 tokens, which are 1028 bytes with the header, but the file has 1027"));
  EXPECT_THAT(refusal(header(20240520, 1, 2) + "abcde"), HasSubstr("the file has 1029"));
  EXPECT_THAT(refusal(header(20240801, 7, 0xFFFFFFFF) + "abcd"), HasSubstr("counts 4294967295 tokens"));
  EXPECT_THAT(refusal(header(20240520, 1, 0)), HasSubstr("no tokens"));
}

TEST_F(TokenFiles, ReadsEachForm) {
  for (const TokenFormat format :
       {TokenFormat::kUint16, TokenFormat::kUint32, TokenFormat::kGpt2, TokenFormat::kLlama3}) {
    const bool is_wide = format == TokenFormat::kUint32 || format == TokenFormat::kLlama3;
    const at::Tensor tokens = row({1, 65535, 0, is_wide ? 4294967295 : 7});
    write_token_file(folder_ / "t.bin", tokens, format);
    const TokenFile read(folder_ / "t.bin", is_wide ? TokenFormat::kUint32 : TokenFormat::kUint16);
    EXPECT_EQ(read.format(), format);
    ASSERT_EQ(read.size(), 4);
    at::Tensor got = at::empty({4}, at::kLong);
    EXPECT_FALSE(read.read(0, 4, int64_t{1} << 32, got.data_ptr<int64_t>()));
    EXPECT_TRUE(at::equal(got, tokens));
    EXPECT_EQ(read.read(0, 4, 65535, got.data_ptr<int64_t>()), 1);
  }
}

TEST_F(TokenFiles, WritesTheBytesOfNanoGptAndLlmC) {
  write_token_file(folder_ / "t.bin", row({513, 2}), TokenFormat::kUint16);
  EXPECT_EQ(content_of(folder_ / "t.bin"), std::string("\x01\x02\x02\x00", 4));
  write_token_file(folder_ / "t.bin", row({513}), TokenFormat::kGpt2);
  EXPECT_EQ(content_of(folder_ / "t.bin"), header(20240520, 1, 1) + "\x01\x02");
  write_token_file(folder_ / "t.bin", row({513}), TokenFormat::kLlama3);
  EXPECT_EQ(content_of(folder_ / "t.bin"), header(20240801, 7, 1) + std::string("\x01\x02\x00\x00", 4));
}

TEST_F(TokenFiles, RefusesToWriteWhatDoesNotFit) {
  const auto refused = [&](const at::Tensor& tokens, TokenFormat format) {
    return error_of<c10::ValueError>([&] { write_token_file(folder_ / "t.bin", tokens, format); });
  };
  EXPECT_THAT(refused(row({0, 65536}), TokenFormat::kGpt2),
              HasSubstr("token 65536 at position 1 does not fit into 16 bits"));
  EXPECT_THAT(refused(row({-1}), TokenFormat::kUint32), HasSubstr("token -1 at position 0"));
  EXPECT_THAT(refused(row({4294967296}), TokenFormat::kLlama3), HasSubstr("does not fit into 32 bits"));
  EXPECT_THAT(refused(row({}), TokenFormat::kUint16), HasSubstr("no tokens"));
  EXPECT_THAT(refused(at::zeros({1, 2}, at::kLong), TokenFormat::kUint16), HasSubstr("one row"));
  EXPECT_THAT(refused(at::zeros({2}, at::kFloat), TokenFormat::kUint16), HasSubstr("whole numbers"));
  EXPECT_THAT(refused(at::zeros({2}, at::kBool), TokenFormat::kUint16), HasSubstr("whole numbers"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "t.bin"));
}

TEST_F(TokenFiles, TargetsAreOneTokenFurtherOn) {
  for (const TokenFormat format : {TokenFormat::kUint16, TokenFormat::kGpt2, TokenFormat::kLlama3}) {
    const TokenDataset dataset(written(at::arange(1000, 1008), format), 3, 1008);
    EXPECT_EQ(dataset.size(), 5);
    const Batch batch = dataset.get_batch(row({4, 0}));
    EXPECT_TRUE(at::equal(batch.data, row({1004, 1005, 1006, 1000, 1001, 1002}).view({2, 3})));
    EXPECT_TRUE(at::equal(batch.target, row({1005, 1006, 1007, 1001, 1002, 1003}).view({2, 3})));
  }
}

TEST_F(TokenFiles, AnIdOutsideTheVocabularyIsNamed) {
  const TokenDataset dataset(written(row({0, 9, 1, 2, 10, 3})), 2, 10);
  EXPECT_EQ(dataset.get_batch(row({0, 1})).size(), 2);
  for (const int64_t i : {2, 3})
    EXPECT_THAT(error_of<c10::ValueError>([&] { dataset.get_batch(row({i})); }),
                HasSubstr("t.bin': the id at position 4 is 10, and the vocabulary is 0 to 9; give the file"));
  const TokenDataset last(written(row({11, 1, 10})), 2, 10);
  EXPECT_THAT(error_of<c10::ValueError>([&] { last.get_batch(row({0})); }), HasSubstr("position 0 is 11"));
}

TEST_F(TokenFiles, PartsAndStrides) {
  const auto file = written(at::arange(20));
  for (int64_t end = 9; end <= 20; ++end) {
    const TokenDataset part(file, 3, 20, 3, 5, end);
    EXPECT_EQ(part.size(), (end - 5 - 1) / 3) << end;
    EXPECT_TRUE(at::equal(part.get_batch(at::arange(part.size(), at::kLong)).target.flatten(),
                          at::arange(6, 6 + 3 * part.size(), at::kLong)));
  }
  EXPECT_EQ(TokenDataset(file, 3, 20, std::numeric_limits<int64_t>::max()).size(), 1);
}

TEST_F(TokenFiles, RefusesWhatHasNoWindow) {
  const auto file = written(at::arange(5));
  EXPECT_EQ(TokenDataset(file, 4, 5).size(), 1);
  const auto refused = [](const auto&... arguments) {
    return error_of<c10::ValueError>([&] { TokenDataset(arguments...); });
  };
  EXPECT_THAT(refused(nullptr, 1, 5), HasSubstr("no file"));
  EXPECT_THAT(refused(file, 5, 5), HasSubstr("a part of 5 tokens is shorter than context + 1 = 6"));
  EXPECT_THAT(refused(file, std::numeric_limits<int64_t>::max(), 5), HasSubstr("shorter"));
  EXPECT_THAT(refused(file, 0, 5), HasSubstr("context 0"));
  EXPECT_THAT(refused(file, 1, 0), HasSubstr("vocabulary 0"));
  EXPECT_THAT(refused(file, 1, 5, 0), HasSubstr("stride 0"));
  EXPECT_THAT(refused(file, 1, 5, 1, -1), HasSubstr("no part -1 to 5"));
  EXPECT_THAT(refused(file, 1, 5, 1, 0, 6), HasSubstr("no part 0 to 6"));
  EXPECT_THAT(refused(file, 1, 5, 1, 3, 2), HasSubstr("no part 3 to 2"));
  EXPECT_THROW(TokenDataset(file, 4, 5).get_batch(row({1})), c10::ValueError);
}

TEST_F(TokenFiles, ALoaderResumesInTheMiddleOfAnEpoch) {
  const auto dataset = std::make_shared<TokenDataset>(written(at::arange(300)), 7, 300);
  const DataLoaderOptions options{
      .batch_size = 4, .shuffle = true, .seed = 5, .num_samples = 41, .replacement = true};
  DataLoader whole(dataset, options);
  DataLoader resumed(dataset, [&] {
    auto o = options;
    o.num_workers = 2;
    return o;
  }());
  whole.set_epoch(3), resumed.set_epoch(3);
  for (int i = 0; i < 6; ++i) whole.next();
  resumed.skip(6);
  while (const auto expected = whole.next()) {
    const auto got = resumed.next();
    ASSERT_TRUE(got);
    EXPECT_TRUE(at::equal(got->data, expected->data));
    EXPECT_TRUE(at::equal(got->target, expected->target));
  }
  EXPECT_FALSE(resumed.next());
}

}  // namespace
}  // namespace mantissa::token_file_test
