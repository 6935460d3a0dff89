// Tests of files of token ids and of tokenizers on the command line.
#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"

namespace mantissa::cli::tokens_test {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;
using testing::HasSubstr;

/// A tokenizer over bytes, of the letters that the tests use.
constexpr const char* kVocabulary =
    R"({"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "Ġab": 5, "Ã": 6, "©": 7, "<|endoftext|>": 8})";
constexpr const char* kMerges = "#version: 0.2\na b\nĠ ab\n";

class Tokens : public Program {
 protected:
  void SetUp() override {
    Program::SetUp();
    write("tokenizer/vocab.json", kVocabulary);
    write("tokenizer/merges.txt", kMerges);
    std::string text;
    for (int i = 0; i < 1000; ++i) text += "ab abc ";
    write("text.txt", text);
  }
  Outcome tokenize(const std::string& arguments) const {
    return run("tokenize text.txt --tokenizer tokenizer " + arguments);
  }
  Outcome train(const std::string& arguments) const {
    return fit(
        "--model llama-tiny --vocabulary 9 --batch-size 4 --limit-val-batches 1 --lr-schedule constant "
        "--precision 32-true " +
        arguments);
  }
  std::string ids(const std::string& bytes, int count) const {
    std::string all;
    for (int i = 0; i < count; ++i) all += bytes;
    return all;
  }
};

TEST_F(Tokens, ATextBecomesAFile) {
  const Outcome made = tokenize("-o plain.bin --no-header --json -");
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_THAT(made.err, HasSubstr("plain.bin: 3001 tokens of 7000 bytes, vocabulary 9"));
  EXPECT_EQ(json::parse(made.out)["tokens"], 3001);
  EXPECT_EQ(read(folder_ / "plain.bin").substr(0, 8), std::string("\4\0\5\0\2\0\5\0", 8));
  ASSERT_EQ(tokenize("-o counted.bin --quiet").err, "");
  EXPECT_EQ(read(folder_ / "counted.bin").substr(1024), read(folder_ / "plain.bin"));
}

TEST_F(Tokens, TokenizeNamesWhatIsWrong) {
  write("bad.txt", "ab\xFF");
  expect_error(run("tokenize bad.txt --tokenizer tokenizer -o t.bin"), 1,
               {"text file 'bad.txt' is not UTF-8 at byte 2", "convert it to UTF-8"});
  expect_error(fit("--data text:bad.txt --tokenizer tokenizer --model llama-tiny --output run"), 1,
               {"text file 'bad.txt' is not UTF-8 at byte 2"});
  write("other.txt", "xyz");
  expect_error(run("tokenize other.txt --tokenizer tokenizer -o t.bin"), 1, {"'other.txt' has no text"});
  expect_error(run("tokenize text.txt --tokenizer none -o t.bin"), 1, {"none': no such file"});
  expect_error(run("tokenize none.txt --tokenizer tokenizer -o t.bin"), 1, {"none.txt': no such file"});
  expect_error(tokenize("-o none/t.bin"), 1, {"none"});
}

TEST_F(Tokens, ARunTrainsResumesAndWrites) {
  ASSERT_EQ(tokenize("-o tokens.bin --quiet").status, 0);
  const std::string data = "--data tokens:tokens.bin ";
  const Outcome whole = train(data + "--max-steps 30 --output whole");
  ASSERT_EQ(whole.status, 0) << whole.err;
  ASSERT_EQ(train(data + "--max-steps 7 --output run").status, 0);
  const Outcome resumed = run("resume run --quiet --max-steps 30");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(read(folder_ / "run/weights.safetensors"), read(folder_ / "whole/weights.safetensors"));
  const Outcome validated = run("validate run --quiet --json -");
  ASSERT_EQ(validated.status, 0) << validated.err;
  EXPECT_EQ(json::parse(validated.out)["samples"], 2);  // windows of 128 in a tenth of 3,001 tokens
  fs::remove(folder_ / "tokens.bin");                   // the data is not needed
  expect_error(
      run("generate run --prompt ab"), 2,
      {"the run in 'run' was trained on --data tokens:tokens.bin, which does not record its tokenizer",
       "--tokenizer", "--prompt-tokens"});
  EXPECT_EQ(run("generate run --prompt-tokens 1,2 --max-new-tokens 1 --quiet").status, 0);
  const Outcome made =
      run("generate run --tokenizer tokenizer --prompt 'ab abc ab abc ab' --temperature 0 --max-new-tokens 1 "
          "--quiet");
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(made.out, " ab\n");
}

TEST_F(Tokens, ATextTrainsOnTheTokensOfATokenizer) {
  const std::string words =
      "--data text:text.txt --tokenizer tokenizer --model llama-tiny --batch-size 4 --limit-val-batches 1 "
      "--lr-schedule constant --precision 32-true ";
  const Outcome trained = fit(words + "--max-steps 30 --output run");
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_EQ(trained.err, "");
  ASSERT_EQ(tokenize("-o tokens.bin --quiet").status, 0);
  ASSERT_EQ(train("--data tokens:tokens.bin --max-steps 30 --output other").status, 0);
  EXPECT_EQ(read(folder_ / "run/weights.safetensors"), read(folder_ / "other/weights.safetensors"))
      << "the same tokens, and the same vocabulary";
  const Outcome made =
      run("generate run --prompt 'ab abc ab abc ab' --temperature 0 --max-new-tokens 1 --quiet");
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(made.out, " ab\n") << "the run knows its tokenizer";
  fs::rename(folder_ / "tokenizer", folder_ / "moved");
  EXPECT_THAT(run("generate run --prompt ab").err, HasSubstr("tokenizer"));
  EXPECT_EQ(run("generate run --prompt ab --tokenizer moved --max-new-tokens 1 --quiet").status, 0);
  const std::string resume = "resume run --device cpu --quiet --max-steps 31 ";
  const std::vector<std::string> parts{"the run in 'run' has --tokenizer tokenizer in 'run/config.yaml'",
                                       "'tokenizer' is not there; give its place now as --tokenizer"};
  expect_error(run(resume), 1, parts);
  expect_error(run(resume + "--data text:text.txt"), 1, parts);
  fs::rename(folder_ / "text.txt", folder_ / "moved.txt");
  expect_error(run(resume + "--tokenizer moved"), 1, {"give its place now as --data"});
  const Outcome resumed = run(resume + "--data text:moved.txt --tokenizer moved");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  ASSERT_EQ(train("--data tokens:tokens.bin --max-steps 31 --output whole").status, 0);
  EXPECT_EQ(read(folder_ / "run/weights.safetensors"), read(folder_ / "whole/weights.safetensors"));
  EXPECT_EQ(run("validate run --quiet").status, 0) << "the run knows both places now";
  write("short.txt", "ab abc ab");
  expect_error(fit("--data text:short.txt --tokenizer moved --model llama-tiny --output third"), 1,
               {"'short.txt'", "4 tokens", "129"});
}

TEST_F(Tokens, AFolderHasBothParts) {
  write("data/train.bin", ids(std::string("\1\0\2\0", 4), 100));
  expect_error(train("--data tokens:data --max-steps 1 --output run"), 1, {"data/val.bin", "No such file"});
  write("data/val.bin", ids(std::string("\1\0\2\0", 4), 200));
  ASSERT_EQ(train("--data tokens:data --max-steps 1 --output run").status, 0);
  const Outcome tested = run("test run --quiet --json - --data tokens:data");
  ASSERT_EQ(tested.status, 0) << tested.err;
  EXPECT_EQ(json::parse(tested.out)["samples"], 3);
}

TEST_F(Tokens, BadFilesAreNamed) {
  write("bad.bin", ids(std::string("\1\0\2\0", 4), 1000) + ids(std::string("\x9\0", 2), 1000));
  expect_error(train("--data tokens:bad.bin --max-steps 500"), 1,
               {"token file 'bad.bin': the id at position ", " is 9, and the vocabulary is 0 to 8"});
  write("odd.bin", "abc");
  expect_error(train("--data tokens:odd.bin"), 1, {"'odd.bin'", "3 bytes are no whole number of ids"});
  write("short.bin", ids(std::string("\1\0", 2), 1000));
  expect_error(train("--data tokens:short.bin"), 1, {"'short.bin'", "900", "100", "129", "--val-fraction"});
  expect_error(train("--data tokens:none.bin"), 1, {"none.bin"});
  expect_error(fit("--data tokens:short.bin --model convnet"), 2, {"--model convnet cannot read"});
  expect_error(fit("--data tokens:short.bin --vocabulary 0"), 2, {"--vocabulary 0"});
  expect_error(run("generate absent --prompt-tokens 1 --tokenizer tokenizer"), 2,
               {"--tokenizer encodes the text"});
}

TEST_F(Tokens, TheContextIsThatOfTheWindowsAndOfTheModel) {
  write("short.bin", ids(std::string("\1\0", 2), 400));
  const std::string folder = "--data tokens:short.bin --max-steps 1 --output run --json - --quiet ";
  expect_error(train(folder), 1, {"'short.bin'", "40 to validate", "129"});
  const Outcome trained = train(folder + "--context 20");
  ASSERT_EQ(trained.status, 0) << trained.err;
  const Outcome validated = run("validate run --device cpu --quiet --json -");
  EXPECT_EQ(json::parse(validated.out)["samples"], 1)
      << "windows of 20 and the token after them, in 40 tokens";
  expect_error(run("generate run --prompt-tokens 1,1,1 --max-new-tokens 30 --context 20"), 2, {"--context"});
  const Outcome written = run("generate run --device cpu --prompt-tokens 1,1,1 --max-new-tokens 30 --json -");
  EXPECT_EQ(json::parse(written.out)["ended_by"], "context");
  EXPECT_THAT(fit("--model mlp --context 20 --max-steps 0 --output images").err,
              HasSubstr("--context has no effect with --data digits"));
  expect_error(fit("--data text:short.bin --context 0"), 2, {"--context 0"});
}

TEST_F(Tokens, ConversationsTrainOnTheirAnswers) {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += i % 2 == 0 ? "{\"prompt\": \"ab\", \"completion\": \"c\"}\n"
                        : "{\"prompt\": \"ba\", \"completion\": \"a\"}\n";
  write("chat.jsonl", lines);
  const std::string words =
      "--data chat:chat.jsonl --tokenizer tokenizer --model llama-tiny --context 8 --batch-size 4 "
      "--precision 32-true --lr-schedule constant ";
  const Outcome whole = fit(words + "--max-steps 24 --output whole");
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_EQ(whole.err, "");
  EXPECT_GT(json::parse(read(folder_ / "whole/result.json"))["val_accuracy"].get<double>(), 0.9)
      << "of the answers alone, because the prompts cannot be foreseen";
  ASSERT_EQ(fit(words + "--max-steps 11 --output run").status, 0);
  const Outcome resumed = run("resume run --quiet --max-steps 24");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_EQ(read(folder_ / "run/weights.safetensors"), read(folder_ / "whole/weights.safetensors"));
  EXPECT_EQ(json::parse(run("test run --quiet --json - --data chat:chat.jsonl").out)["samples"], 40);

  const std::string message =
      "generate whole --prompt ab --temperature 0 --max-new-tokens 8 --quiet --json - ";
  const json raw = json::parse(run(message).out);
  EXPECT_EQ(raw["text"], "c") << "its line has a prompt and no messages";
  EXPECT_EQ(raw["prompt_tokens"].size(), 1);
  const Outcome chat = run(message + "--chat --system ba");
  ASSERT_EQ(chat.status, 0) << chat.err;
  EXPECT_GT(json::parse(chat.out)["prompt_tokens"].size(), 2) << "roles are written, too";
  expect_error(run("generate whole --prompt-tokens 1 --chat"), 2, {"--chat is for the message"});
  expect_error(run("generate whole --prompt ab --system ba"), 2, {"--system", "--chat"});

  const Outcome cut = fit(words + "--context 2 --max-steps 1 --output other");
  EXPECT_THAT(cut.err, HasSubstr("20 of 40 conversations are longer than --context 2"));
  expect_error(fit("--data chat:chat.jsonl --model llama-tiny --output third"), 1, {"needs a tokenizer"});
  write("bad.jsonl", lines + "{}\n");
  expect_error(fit("--data chat:bad.jsonl --tokenizer tokenizer --model llama-tiny --output third"), 1,
               {"bad.jsonl', line 41 has neither messages"});
}

}  // namespace
}  // namespace mantissa::cli::tokens_test
