#include "mantissa/data/tokenizers/tokenizer.h"

#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/data/tokenizers/pattern_internal.h"
#include "mantissa/data/tokenizers/utf8_internal.h"

namespace mantissa::tokenizer_test {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Ids = std::vector<int64_t>;

constexpr const char* kVocabulary =
    R"({"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4, "ð": 5, "Ł": 6, "ĺ": 7, "Ģ": 8, "<|endoftext|>": 9})";
constexpr const char* kMerges = "#version: 0.2\na b\nĠ ab\n";

Tokenizer gpt2(const std::string& vocabulary = kVocabulary, const std::string& merges = kMerges) {
  return parse_gpt2_tokenizer(vocabulary, "vocab.json", merges, "merges.txt");
}

/// A Llama 2 of three letters, with tokens for two bytes.
Json llama() {
  return Json::parse(
      R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}, "pre_tokenizer": null,
    "added_tokens": [{"id": 0, "content": "<s>", "special": true, "normalized": false}],
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
      {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "fuse_unk": true,
      "vocab": {"<s>": 0, "<unk>": 1, "<0xC3>": 2, "<0xA9>": 3, "▁": 4, "a": 5, "b": 6, "▁a": 7}, "merges": ["▁ a"]}})");
}

Tokenizer parsed(const Json& json) { return parse_tokenizer(json.dump(), "tokenizer.json"); }
std::string refusal(const Json& json) {
  return error_of<c10::ValueError>([&] { parsed(json); });
}
Json changed(const std::string& pointer, const Json& value) {
  Json json = llama();
  json[Json::json_pointer(pointer)] = value;
  return json;
}

TEST(Tokenizer, Gpt2JoinsByRank) {
  EXPECT_THAT(gpt2().encode("ab ab b"), ElementsAre(2, 4, 3, 1));
  EXPECT_THAT(gpt2().encode(""), IsEmpty());
  EXPECT_THAT(gpt2().encode("a<|endoftext|>b"), ElementsAre(0, 9, 1));
  EXPECT_THAT(gpt2().encode("zz"), IsEmpty());  // the vocabulary has no token for them
  EXPECT_EQ(gpt2().vocabulary_size(), 10);
  EXPECT_EQ(gpt2().id_of("<|endoftext|>"), 9);
  EXPECT_EQ(gpt2().id_of("c"), std::nullopt);
}

TEST(Tokenizer, DecodeLeavesOutSpecialAndUnknownIds) {
  EXPECT_EQ(gpt2().decode({2, 9, 4, 10, -1}), "ab ab");
  EXPECT_EQ(gpt2().decode({2, 9}, /*skip_special_tokens=*/false), "ab<|endoftext|>");
}

TEST(Tokenizer, AStreamHoldsBackAnIncompleteCharacter) {
  TokenText stream(gpt2());
  EXPECT_EQ(stream.push(0), "a");
  for (const int64_t id : {5, 6, 7}) EXPECT_EQ(stream.push(id), "");
  EXPECT_EQ(stream.push(8), "\U0001F600");
  EXPECT_EQ(stream.push(5), "");
  EXPECT_EQ(stream.push(0), "\uFFFDa");
  EXPECT_EQ(stream.push(5), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

TEST(Tokenizer, LlamaFallsBackToBytes) {
  const Tokenizer tokenizer = parsed(llama());
  EXPECT_THAT(tokenizer.encode("a b\u00e9"), ElementsAre(0, 7, 4, 6, 2, 3));
  EXPECT_THAT(tokenizer.encode("azz", /*add_special_tokens=*/false), ElementsAre(7, 1));
  EXPECT_EQ(tokenizer.decode({0, 7, 4, 6, 2, 3}), "a b\u00e9");
  EXPECT_EQ(tokenizer.decode({7, 2, 2, 3, 5}), "a\uFFFD\uFFFD\uFFFDa");
  TokenText stream(tokenizer);
  EXPECT_EQ(stream.push(4), "");  // the space that the normalizer added
  EXPECT_EQ(stream.push(2), "");
  EXPECT_EQ(stream.push(3), "");
  EXPECT_EQ(stream.push(4), "\u00e9 ");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Tokenizer, TextMustBeUtf8) {
  EXPECT_THAT(error_of<c10::ValueError>([] { gpt2().encode("ab\xC3("); }),
              HasSubstr("not UTF-8 at byte 2; convert"));
  EXPECT_THAT(error_of<c10::ValueError>([] { gpt2().encode("\xED\xA0\x80"); }), HasSubstr("byte 0"));
}

TEST(Tokenizer, ThreadsShareOne) {
  const Tokenizer tokenizer = gpt2();
  std::string text;
  for (int i = 0; i < 2000; ++i) text += i % 3 == 0 ? " ab" : "ba";
  const Ids expected = tokenizer.encode(text);
  std::vector<std::thread> threads;
  std::vector<Ids> got(4);
  for (Ids& ids : got) threads.emplace_back([&] { ids = tokenizer.encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : got) EXPECT_EQ(ids, expected);
}

TEST(Tokenizer, RefusesFilesOfGpt2ThatDoNotFit) {
  const auto refused = [](const std::string& vocabulary, const std::string& merges) {
    return error_of<c10::ValueError>([&] { gpt2(vocabulary, merges); });
  };
  EXPECT_THAT(refused("{", ""), HasSubstr("'vocab.json': is not valid JSON"));
  EXPECT_THAT(refused("[]", ""), HasSubstr("'vocab.json': the vocabulary is no JSON object with tokens"));
  EXPECT_THAT(refused("{}", ""), HasSubstr("no JSON object with tokens"));
  EXPECT_THAT(refused(R"({"a": 0, "b": 0})", ""), HasSubstr("'a' and 'b' have the same id 0"));
  EXPECT_THAT(refused(R"({"a": 0, "a": 1})", ""), HasSubstr("names 'a' twice"));
  EXPECT_THAT(refused(R"({"a": 2097152})", ""), HasSubstr("has the id 2097152, which is not 0 to 2097151"));
  EXPECT_THAT(refused(R"({"a": -1})", ""), HasSubstr("the id -1"));
  EXPECT_THAT(refused(R"({"a": 1.0})", ""), HasSubstr("the id 1.0"));
  EXPECT_THAT(refused(R"({"": 1})", ""), HasSubstr("the token with the id 1 is empty"));
  EXPECT_THAT(refused(kVocabulary, "a b\nab\n"), HasSubstr("'merges.txt': line 2 'ab' is no pair"));
  EXPECT_THAT(refused(kVocabulary, "a b\n\n"), HasSubstr("line 2 '' is no pair"));
  EXPECT_THAT(refused(kVocabulary, "a b a\n"), HasSubstr("line 1 'a b a' is no pair"));
  EXPECT_THAT(refused(kVocabulary, "b a\n"), HasSubstr("merge 0 ('b' and 'a') needs the token 'ba'"));
  EXPECT_THAT(refused(kVocabulary, "a b\n\xFF x\n"), HasSubstr("not UTF-8 at byte 4"));
  EXPECT_THAT(gpt2(kVocabulary, "a b\r\nĠ ab").encode(" ab"), ElementsAre(4));  // other ends of lines
}

TEST(Tokenizer, RefusesWhatItCannotCompute) {
  EXPECT_THAT(refusal(Json::array()), HasSubstr("'tokenizer.json': is no JSON object"));
  EXPECT_THAT(refusal(Json::object()), HasSubstr("has no model"));
  EXPECT_THAT(refusal(changed("/model/type", "WordPiece")),
              HasSubstr(".model: type \"WordPiece\" is not supported"));
  EXPECT_THAT(refusal(changed("/model/dropout", 0.5)), HasSubstr("set it to null"));
  EXPECT_EQ(refusal(changed("/model/dropout", 0)), "no error");
  EXPECT_THAT(refusal(changed("/model/end_of_word_suffix", "</w>")), HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(refusal(changed("/model/continuing_subword_prefix", "##")),
              HasSubstr("continuing_subword_prefix"));
  EXPECT_THAT(refusal(changed("/model/unk_token", "none")), HasSubstr("unk_token is not in the vocabulary"));
  EXPECT_THAT(refusal(changed("/model/merges/0", "▁")), HasSubstr("merge 0 is no pair of tokens"));
  EXPECT_THAT(refusal(changed("/model/merges/0", Json::array({"a", "b", "c"}))),
              HasSubstr("merge 0 is no pair"));
  EXPECT_THAT(refusal(changed("/truncation", {{"max_length", 3}})), HasSubstr("truncation"));
  EXPECT_THAT(refusal(changed("/padding", {{"length", 3}})), HasSubstr("padding"));
  EXPECT_THAT(refusal(changed("/normalizer", {{"type", "NFC"}})),
              HasSubstr("the normalizer 'NFC' is not supported"));
  EXPECT_THAT(refusal(changed("/normalizer/normalizers/1/pattern", {{"Regex", " "}})),
              HasSubstr("no plain text"));
  EXPECT_THAT(refusal(changed("/pre_tokenizer", {{"type", "Digits"}})),
              HasSubstr("the pre-tokenizer 'Digits'"));
  EXPECT_THAT(refusal(changed("/post_processor/single/1", {{"Sequence", {{"id", "A"}}}})), "no error");
  EXPECT_THAT(refusal(changed("/post_processor/single", Json::array())), HasSubstr("no place for the text"));
  EXPECT_THAT(refusal(changed("/post_processor/special_tokens/<s>/ids/0", 99)),
              HasSubstr("id 99 is that of no token"));
  EXPECT_THAT(refusal(changed("/decoder/decoders/2", {{"type", "Fuse"}})), "no error");
  EXPECT_THAT(refusal(changed("/decoder/decoders/2", {{"type", "ByteFallback"}})),
              HasSubstr("Strip without Fuse"));
  EXPECT_THAT(refusal(changed("/decoder/decoders/3/stop", 1)), HasSubstr("stop 1 is not supported"));
  EXPECT_THAT(refusal(changed("/added_tokens/0/id", 3)),
              HasSubstr("'<s>' has the id 3, and its place in the file asks for 0"));
  EXPECT_THAT(refusal(changed("/added_tokens/1", {{"id", 0}, {"content", "<s>"}})), HasSubstr("added twice"));
}

TEST(Tokenizer, PatternsKeepOnigurumasMeaning) {
  const auto refused = [](const std::string& pattern) {
    return error_of<c10::ValueError>([&] { tokenizers::Pattern(pattern, "f"); });
  };
  for (const char* pattern : {R"(\h)", R"(\w)", R"(\b)", R"([a&&b])", R"([a[b]])", R"((?<n>a))", R"((?#a))",
                              R"(a{2}+)", R"([^\S])", R"(\pL)", R"(\p{^L})", R"([]a])"})
    EXPECT_THAT(refused(pattern), HasSubstr("is not supported; give the tokenizer.json")) << pattern;
  EXPECT_THAT(refused("("), HasSubstr("f: the pattern '(' is no regular expression"));
  EXPECT_THAT(refused(std::string(10001, 'a')), HasSubstr("10001 bytes"));
  const auto pieces = [](const std::string& pattern, const std::string& text) {
    std::vector<std::string> all;
    tokenizers::Pattern(pattern, "f").cut(text, [&](std::string_view piece) { all.emplace_back(piece); });
    return all;
  };
  EXPECT_THAT(pieces(R"(\s)", "a\u180Eb\u00A0c"), ElementsAre("a\u180Eb", "\u00A0", "c"));
  EXPECT_THAT(pieces(R"(\p{L})", "1\U000313502"), ElementsAre("1", "\U00031350", "2"));  // of Unicode 15
  EXPECT_THAT(pieces(R"(b*)", "abba"), ElementsAre("a", "bb", "a"));
  EXPECT_THAT(pieces("x", ""), IsEmpty());
}

class TokenizerFiles : public InFolder {
 protected:
  void write(const char* name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
};

TEST_F(TokenizerFiles, AFolderOrOneOfItsFiles) {
  EXPECT_THAT(error_of([&] { load_tokenizer(folder_); }),
              HasSubstr("has neither tokenizer.json nor vocab.json"));
  EXPECT_THAT(error_of([&] { load_tokenizer(folder_ / "none"); }), HasSubstr("none': no such file"));
  write("vocab.json", kVocabulary);
  EXPECT_THAT(error_of([&] { load_tokenizer(folder_); }), HasSubstr("merges.txt': no such file"));
  write("merges.txt", kMerges);
  EXPECT_THAT(load_tokenizer(folder_).encode(" ab"), ElementsAre(4));
  EXPECT_THAT(load_tokenizer(folder_ / "vocab.json").encode(" ab"), ElementsAre(4));
  write("tokenizer.json", llama().dump());
  EXPECT_THAT(load_tokenizer(folder_).encode("a"), ElementsAre(0, 7));
  write("tokenizer.json", llama().dump().substr(0, 300));
  EXPECT_THAT(error_of([&] { load_tokenizer(folder_ / "tokenizer.json"); }), HasSubstr("is not valid JSON"));
}

}  // namespace
}  // namespace mantissa::tokenizer_test
