#include "mantissa/data/chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/data/images/test_support_internal.h"

namespace mantissa::chat_test {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

/// A tokenizer over bytes that has each printable character, and these special tokens.
Tokenizer tokenizer(const std::vector<std::string>& special) {
  Json vocabulary = {{"Ġ", 0}, {"Ċ", 1}}, added = Json::array();
  for (char c = '!'; c <= '~'; ++c) vocabulary[std::string(1, c)] = vocabulary.size();
  for (const std::string& token : special)
    added.push_back({{"id", vocabulary.size() + added.size()},
                     {"content", token},
                     {"special", true},
                     {"normalized", false}});
  const Json json = {
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}}};
  return parse_tokenizer(json.dump(), "tokenizer.json");
}

const Tokenizer& chat_tokenizer() {
  static const Tokenizer made = tokenizer({"<|im_start|>", "<|im_end|>", "<|endoftext|>"});
  return made;
}

ChatText parsed(const std::string& line, const std::string& name = "chatml") {
  return parse_chat_line(line, find_chat_template(name, chat_tokenizer()), "<|endoftext|>", "'f', line 7");
}
std::string refused(const std::string& line) {
  return error_of([&] { parsed(line); });
}

/// Returns the texts of the pieces, the trained ones in brackets.
std::string shown(const ChatText& text) {
  std::string all;
  for (const ChatPiece& piece : text.pieces) all += piece.is_trained ? "[" + piece.text + "]" : piece.text;
  return all;
}

const std::string kMessages =
    R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"}, {"role": "user", "content": "V"},
        {"role": "assistant", "content": "B"}], "id": 3})";

TEST(Chat, EveryTemplateMarksTheAnswers) {
  EXPECT_EQ(
      shown(parsed(kMessages)),
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n[A<|im_end|>]\n"
      "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n[B<|im_end|>]\n");
  EXPECT_EQ(shown(parsed(kMessages, "llama3")),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[A<|eot_id|>]"
            "<|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n[B<|eot_id|>]");
  EXPECT_EQ(shown(parsed(kMessages, "llama2")),
            "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST][ A </s>]<s>[INST] V [/INST][ B </s>]");
  EXPECT_EQ(shown(parsed(kMessages, "plain")),
            "### System:\nS\n\n### User:\nU\n\n### Assistant:\n[A<|endoftext|>]\n\n### User:\nV\n\n"
            "### Assistant:\n[B<|endoftext|>]\n\n");
  EXPECT_TRUE(parsed(kMessages).has_special_tokens);
  EXPECT_FALSE(parsed(kMessages, "plain").has_special_tokens);
}

TEST(Chat, PromptsAndInstructionsNeedNoTemplate) {
  EXPECT_EQ(shown(parsed(R"({"prompt": "2+2=", "completion": "4"})")), "2+2=[4<|endoftext|>]");
  EXPECT_EQ(
      shown(parsed(R"({"instruction": "Add.", "input": "2, 2", "output": "4"})")),
      "Below is an instruction that describes a task, paired with an input that provides further context. "
      "Write "
      "a response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n2, 2\n\n"
      "### Response:\n[4<|endoftext|>]");
  EXPECT_THAT(
      shown(parsed(R"({"instruction": "Add.", "output": "4"})")),
      HasSubstr("task. Write a response that appropriately completes the request.\n\n### Instruction:\nAdd."
                "\n\n### Response:\n[4"));
}

TEST(Chat, TheTokenizerDecidesOnTheTemplate) {
  EXPECT_EQ(find_chat_template("auto", chat_tokenizer()).name, "chatml");
  EXPECT_EQ(find_chat_template("auto", tokenizer({"<|start_header_id|>"})).name, "llama3");
  EXPECT_EQ(find_chat_template("auto", tokenizer({"<s>"})).name, "llama2");
  EXPECT_EQ(find_chat_template("auto", tokenizer({"<|endoftext|>"})).name, "plain");
  EXPECT_EQ(find_chat_template("llama2", chat_tokenizer()).name, "llama2");
  EXPECT_THAT(error_of([] { find_chat_template("chat-ml", chat_tokenizer()); }),
              HasSubstr("did you mean 'chatml'?"));
}

TEST(Chat, APromptIsWhatTrainingHasBeforeTheAnswer) {
  const Tokenizer known = tokenizer({"<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
                                     "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>", "<|endoftext|>"});
  const std::map<std::string, std::string> ends = {
      {"chatml", "<|im_end|>"}, {"llama3", "<|eot_id|>"}, {"llama2", "</s>"}, {"plain", "<|endoftext|>"}};
  for (const auto& [name, end] : ends)
    for (const std::string system : {"", "Be brief."}) {
      SCOPED_TRACE(name + " with " + system);
      Json messages = Json::array();
      if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
      messages.push_back({{"role", "user"}, {"content", "2+2?"}});
      messages.push_back({{"role", "assistant"}, {"content", "4"}});
      const auto dataset = parse_chat(Json{{"messages", messages}}.dump(), known,
                                      {.context = 200, .chat_template = name}, "f");
      const Batch batch = dataset->get_batch(torch::tensor({0}));
      const ChatPrompt prompt = chat_prompt("2+2?", system, name, known);
      const auto count = static_cast<int64_t>(prompt.ids.size());
      EXPECT_TRUE(batch.data[0].narrow(0, 0, count).equal(torch::tensor(prompt.ids)));
      EXPECT_EQ((batch.target[0] != -100).nonzero()[0].item<int64_t>(), count - 1) << "the answer follows";
      EXPECT_THAT(prompt.stop_tokens, ElementsAre(*known.id_of(end)));
    }
}

TEST(Chat, OnlyAnswersHaveTargets) {
  const std::string lines = R"({"prompt": "ab", "completion": "cd"})"
                            "\n\n"
                            R"({"prompt": "a", "completion": "b"})"
                            "\n";
  const auto dataset = parse_chat(lines, chat_tokenizer(), {.context = 6}, "f");
  ASSERT_EQ(dataset->size(), 2);
  const int64_t a = *chat_tokenizer().id_of("a"), end = *chat_tokenizer().id_of("<|endoftext|>");
  const Batch batch = dataset->get_batch(torch::tensor({0, 1}));
  const auto row = [](const at::Tensor& t, int64_t i) {
    const auto* first = t.const_data_ptr<int64_t>() + i * t.size(1);
    return std::vector<int64_t>(first, first + t.size(1));
  };
  EXPECT_THAT(row(batch.data, 0), ElementsAre(a, a + 1, a + 2, a + 3, end, end));
  EXPECT_THAT(row(batch.target, 0), ElementsAre(-100, a + 2, a + 3, end, -100, -100));
  EXPECT_THAT(row(batch.data, 1), ElementsAre(a, a + 1, end, end, end, end));
  EXPECT_THAT(row(batch.target, 1), ElementsAre(a + 1, end, -100, -100, -100, -100));
}

TEST(Chat, ATokenAcrossTheBoundaryBelongsToTheAnswer) {
  // "b" and "c" are joined, so no text before the answer has that token.
  const Tokenizer joined = parse_gpt2_tokenizer(R"({"a": 0, "b": 1, "c": 2, "bc": 3, "<|endoftext|>": 4})",
                                                "vocab.json", "b c\n", "merges.txt");
  const auto dataset = parse_chat(R"({"prompt": "ab", "completion": "ca"})", joined, {.context = 4}, "f");
  const Batch batch = dataset->get_batch(torch::tensor({0}));
  EXPECT_TRUE(batch.data.equal(torch::tensor({{0, 3, 0, 4}})));
  EXPECT_TRUE(batch.target.equal(torch::tensor({{3, 0, 4, -100}})));
}

TEST(Chat, LongConversationsAreCutAndEmptyOnesDropped) {
  const std::string lines = R"({"prompt": "a", "completion": "bcdefgh"})"
                            "\n"
                            R"({"prompt": "abcdefgh", "completion": "i"})";
  const auto dataset = parse_chat(lines, chat_tokenizer(), {.context = 4}, "f");
  EXPECT_EQ(dataset->size(), 1);
  EXPECT_EQ(dataset->cut(), 1);
  EXPECT_EQ(dataset->dropped(), 1) << "its answer was cut off";
  EXPECT_EQ(dataset->get_batch(torch::tensor({0})).target.ne(-100).sum().item<int64_t>(), 4);
  EXPECT_THAT(
      error_of([&] { parse_chat(lines.substr(lines.find('\n')), chat_tokenizer(), {.context = 4}, "f"); }),
      HasSubstr("no conversation with an answer within 4 tokens"));
  EXPECT_THAT(error_of([&] { parse_chat("", chat_tokenizer(), {}, "f"); }),
              HasSubstr("'f' has no conversation"));
  EXPECT_THAT(error_of([&] { parse_chat(lines, chat_tokenizer(), {.context = 0}, "f"); }),
              HasSubstr("give 1 at least"));
}

TEST(Chat, ErrorsNameTheLine) {
  EXPECT_THAT(refused("{"), HasSubstr("'f', line 7"));
  EXPECT_THAT(refused("[]"), HasSubstr("'f', line 7 is no JSON object"));
  EXPECT_THAT(refused("{}"), HasSubstr("has neither messages"));
  EXPECT_THAT(refused(R"({"messages": []})"), HasSubstr("an empty one"));
  EXPECT_THAT(refused(R"({"messages": {}})"), HasSubstr("no list"));
  EXPECT_THAT(refused(R"({"messages": ["a"]})"), HasSubstr("a message that is no object"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "user"}]})"), HasSubstr("no text 'content'"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "user", "content": 3}]})"), HasSubstr("no text 'content'"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "bot", "content": "x"}]})"), HasSubstr("the role 'bot'"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "user", "content": "x"}]})"),
              HasSubstr("no message of the assistant"));
  EXPECT_THAT(
      refused(R"({"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]})"),
      HasSubstr("not the first one"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "assistant", "content": "x"}]})"),
              HasSubstr("before the first message of the user"));
  EXPECT_THAT(refused(R"({"prompt": "x"})"), HasSubstr("no text 'completion'"));
  EXPECT_THAT(refused(R"({"instruction": "x", "output": null})"), HasSubstr("no text 'output'"));
  EXPECT_THAT(error_of([] {
                parse_chat("{\"prompt\": \"a\", \"completion\": \"b\"}\n\nnone\n", chat_tokenizer(), {},
                           "f.jsonl");
              }),
              HasSubstr("'f.jsonl', line 3"));
}

class ChatFile : public InFolder {};

TEST_F(ChatFile, IsRead) {
  write_image_file(folder_ / "a.jsonl", R"({"prompt": "a", "completion": "b"})"
                                        "\r\n");
  EXPECT_EQ(read_chat(folder_ / "a.jsonl", chat_tokenizer(), {.context = 9})->size(), 1);
  EXPECT_THAT(error_of([&] { read_chat(folder_ / "b.jsonl", chat_tokenizer()); }), HasSubstr("cannot read"));
  EXPECT_THAT(error_of([&] { read_chat(folder_, chat_tokenizer()); }), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace mantissa::chat_test
