// Tests of inspect and convert with files of weights.
#include <map>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"

namespace mantissa::cli::weights_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

/// Returns the bytes of a safetensors file, so that it can hold values that training never produces.
std::string safetensors(const std::string& header, const std::string& data) {
  std::string text = header;
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + text + data;
}

/// Returns the header of a file of float32 zeros. A test that needs the zeros resizes the file.
std::string header_of_zeros(uint64_t bytes) {
  return safetensors(R"({"w":{"dtype":"F32","shape":[)" + std::to_string(bytes / 4) +
                         R"(],"data_offsets":[0,)" + std::to_string(bytes) + "]}}",
                     "");
}
std::string zeros(uint64_t bytes) { return header_of_zeros(bytes) + std::string(bytes, '\0'); }

const std::string kRareValues =
    safetensors(R"({"__metadata__":{"by":"hand\u001b[31m"},)"
                R"("block.bias":{"dtype":"F16","shape":[3],"data_offsets":[0,6]},)"
                R"("block.mask":{"dtype":"BOOL","shape":[2],"data_offsets":[6,8]},)"
                R"("block.weight":{"dtype":"BF16","shape":[2,1],"data_offsets":[8,12]},)"
                R"("empty":{"dtype":"F32","shape":[0,4],"data_offsets":[12,12]},)"
                R"("scale":{"dtype":"F8_E4M3","shape":[],"data_offsets":[12,13]}})",
                std::string("\x00\x3c\x01\x00\x00\x7c"
                            "\x01\x00"
                            "\xc0\x7f\x80\x3f"
                            "\x38",
                            13));

TEST_F(Program, InspectShowsWhatAFileHolds) {
  write("rare.safetensors", kRareValues);
  const Outcome table = run("inspect rare.safetensors");
  EXPECT_EQ(table.status, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("rare.safetensors: safetensors, 5 tensors, 8 elements, 13 bytes\n"));
  EXPECT_THAT(table.out, HasSubstr("metadata: by: hand?[31m\n"));
  EXPECT_THAT(table.out,
              testing::ContainsRegex("block\\.bias +F16 +\\[3\\] +6 +5\\.9605e-08 +1 .* 0 +1 +0 +1\n"));
  EXPECT_THAT(table.out,
              testing::ContainsRegex("block\\.weight +BF16 +\\[2, 1\\] +4 +1 +1 +1 +0 +1 +0 +0 +0\n"));
  EXPECT_THAT(table.out, testing::ContainsRegex("empty +F32 +\\[0, 4\\] +0 +- +- +- +- +0 +0 +0 +0\n"));

  const auto json = nlohmann::json::parse(run("inspect --json rare.safetensors").out);
  ASSERT_EQ(json.size(), 1U);
  EXPECT_EQ(json[0]["metadata"]["by"], "hand\x1b[31m");
  EXPECT_EQ(json[0]["tensors"][0]["inf"], 1);
  EXPECT_EQ(json[0]["tensors"][0]["denormal"], 1);
  EXPECT_EQ(json[0]["tensors"][1]["mean"], 0.5);
  EXPECT_EQ(json[0]["tensors"][2]["nan"], 1);
  EXPECT_EQ(json[0]["tensors"][3]["min"], nullptr);
  EXPECT_EQ(json[0]["totals"]["F16"]["bytes"], 6);
  EXPECT_EQ(json[0]["totals"].size(), 5U);

  const Outcome quick =
      run("inspect --no-values --sort bytes --filter 'block.*' --filter scale rare.safetensors");
  EXPECT_THAT(quick.out, testing::Not(HasSubstr("min")));
  EXPECT_LT(quick.out.find("block.bias"), quick.out.find("block.weight"));
  EXPECT_LT(quick.out.find("block.weight"), quick.out.find("block.mask"));
  EXPECT_LT(quick.out.find("block.mask"), quick.out.find("scale"));
  EXPECT_THAT(quick.out, testing::Not(HasSubstr("empty")));
  EXPECT_THAT(run("inspect --no-values --json rare.safetensors").out, testing::Not(HasSubstr("nan")));
}

TEST_F(Program, InspectChecksAndRefuses) {
  write("rare.safetensors", kRareValues);
  const Outcome found = run("inspect --check rare.safetensors");
  EXPECT_EQ(found.status, 3);
  EXPECT_EQ(found.err, "mantissa: error: 2 tensors hold nan or inf: block.bias, block.weight\n");
  EXPECT_THAT(found.out, HasSubstr("block.weight"));
  EXPECT_EQ(run("inspect --check --filter scale rare.safetensors rare.safetensors").status, 0);
  expect_error(run("inspect"), 2, {"files is required"});
  expect_error(run("inspect --check --no-values rare.safetensors"), 2, {"--check", "give one of them"});
  expect_error(run("inspect --sort size rare.safetensors"), 2, {"'size'", "name, bytes"});
  expect_error(run("inspect --filter 'blok.*' rare.safetensors"), 1, {"'blok.*' matches none of the 5"});
  expect_error(run("inspect absent.safetensors"), 1, {"'absent.safetensors'", "No such file"});
  write("cut.safetensors", kRareValues.substr(0, kRareValues.size() - 1));
  const Outcome cut = run("inspect rare.safetensors cut.safetensors");
  expect_error(cut, 1, {"'cut.safetensors'", "truncated"});
  EXPECT_EQ(cut.out, "") << "nothing is shown before all files are known to be whole";
  write("folder/config.json", "{}");
  expect_error(run("inspect folder"), 1, {"holds no *.safetensors"});
}

TEST_F(Program, ConvertCastsRenamesAndSaysWhatIsLost) {
  write("in.safetensors",
        safetensors(
            R"({"__metadata__":{"format":"pt"},"m.norm":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
            R"("m.w":{"dtype":"F32","shape":[3],"data_offsets":[4,16]},)"
            R"("m.x":{"dtype":"F32","shape":[1],"data_offsets":[16,20]},)"
            R"("m.y":{"dtype":"I32","shape":[1],"data_offsets":[20,24]}})",
            std::string("\0\0\x80\x3f"  // 1
                        "\0\0\x80\x3f"  // 1
                        "\0\0\x80\x4f"  // 2^32
                        "\0\0\x80\x2f"  // 2^-32
                        "\0\0\x80\x3f"
                        "\7\0\0\0",
                        24)));
  const Outcome done =
      run("convert in.safetensors new/out.safetensors --dtype fp16 --keep-fp32 '*norm' --strip-prefix m. "
          "--rename 'w$=>weight' --rename '^(.)$=>$1$1' --add-prefix 'net$.' --metadata by=us");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("warning: 1 values are too large for their new dtype"));
  EXPECT_THAT(done.out,
              HasSubstr("F32 to F16: 2 tensors, 4 values: 1 overflow, 1 become zero, largest relative "
                        "error of the others 0\n"));
  EXPECT_THAT(done.out, HasSubstr("  net$.weight: 1 overflow, 1 become zero, of 3\n"));
  EXPECT_EQ(done.left, (std::vector<std::string>{"new", "new/out.safetensors"}));
  const auto seen = nlohmann::json::parse(run("inspect --json new/out.safetensors").out)[0];
  EXPECT_EQ(seen["metadata"], (nlohmann::json{{"format", "pt"}, {"by", "us"}}));
  std::map<std::string, std::string> dtypes;
  for (const auto& tensor : seen["tensors"]) dtypes[tensor["name"]] = tensor["dtype"];
  EXPECT_EQ(dtypes,
            (std::map<std::string, std::string>{
                {"net$.norm", "F32"}, {"net$.weight", "F16"}, {"net$.xx", "F16"}, {"net$.yy", "I32"}}));

  const std::string long_name(1000, 'n');
  EXPECT_EQ(run("convert in.safetensors long.safetensors --rename '^m.x$=>" + long_name + "'").status, 0);
  EXPECT_THAT(read(folder_ / "long.safetensors"), HasSubstr("\"" + long_name + "\""));

  write("map.yaml", "'^m\\.': ''\n'^norm$': null\nnothing: something\n");
  const auto json = nlohmann::json::parse(
      run("convert in.safetensors out.safetensors --key-map map.yaml --dtype bf16 --only '*.w' --json").out);
  ASSERT_EQ(json["tensors"].size(), 3U);
  EXPECT_EQ(json["tensors"][0], (nlohmann::json{{"name", "w"},
                                                {"source", "m.w"},
                                                {"source_dtype", "F32"},
                                                {"dtype", "BF16"},
                                                {"values", 3},
                                                {"overflowed", 0},
                                                {"flushed", 0},
                                                {"max_relative_error", 0.0}}));
  EXPECT_EQ(json["tensors"][1]["dtype"], "F32");
  const Outcome dry = run("convert in.safetensors other --dtype fp64 --max-shard-size 8B --dry-run");
  EXPECT_THAT(dry.out, AllOf(HasSubstr("other/model-00003-of-00004.safetensors: 1 tensors, 8 bytes"),
                             HasSubstr("m.w F32 => m.w F64\n")));
  EXPECT_THAT(dry.left, testing::IsEmpty());
}

TEST_F(Program, ConvertToShardsAndBackIsTheSameFile) {
  ASSERT_EQ(fit("--model convnet --max-steps 1 --output run --precision 32-true").status, 0);
  const Outcome shards = run("convert run/weights.safetensors shards --max-shard-size 20kb");
  EXPECT_EQ(shards.status, 0) << shards.err;
  EXPECT_TRUE(fs::exists(folder_ / "shards/model.safetensors.index.json"));
  EXPECT_EQ(run("convert shards back.safetensors").status, 0);
  EXPECT_EQ(read(folder_ / "back.safetensors"), read(folder_ / "run/weights.safetensors"));
  EXPECT_THAT(run("inspect shards").out, HasSubstr("shards: sharded safetensors, "));
  expect_error(run("convert shards shards --max-shard-size 20kb"), 2, {"is the input itself"});
  expect_error(run("convert back.safetensors shards --max-shard-size 20kb"), 1, {"already exists"});
  expect_error(run("convert back.safetensors shards --max-shard-size 20kb --overwrite"), 1,
               {"cannot be replaced in one move"});
  expect_error(run("convert shards back.safetensors"), 1,
               {"'back.safetensors' already exists", "--overwrite"});
  EXPECT_EQ(run("convert shards back.safetensors --dtype fp16 --overwrite").status, 0);
  EXPECT_LT(fs::file_size(folder_ / "back.safetensors"), fs::file_size(folder_ / "run/weights.safetensors"));
  fs::create_hard_link(folder_ / "back.safetensors", folder_ / "link.safetensors");
  expect_error(run("convert back.safetensors link.safetensors --overwrite"), 2, {"is the input itself"});
}

TEST_F(Program, ConvertTakesTheWeightsOfACheckpoint) {
  ASSERT_EQ(fit("--model mlp --max-epochs 2 --save-top-k -1 --output run").status, 0);
  const std::string oldest = "run/checkpoints/epoch=0-step=45", newest = "run/checkpoints/epoch=1-step=90";
  for (const auto& [in, weights] : {std::pair(oldest, oldest), {std::string("run/checkpoints"), newest}}) {
    const Outcome outcome = run("convert " + in + " out.safetensors --overwrite");
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_TRUE(read(folder_ / "out.safetensors") == read(folder_ / weights / "weights.safetensors")) << in;
  }
  EXPECT_FALSE(read(folder_ / oldest / "weights.safetensors") ==
               read(folder_ / newest / "weights.safetensors"));
  expect_error(run("convert " + oldest + " " + oldest + "/weights.safetensors"), 2, {"is the input itself"});
  // A folder of runs has weights below it, but no checkpoint.
  for (const char* command : {"inspect .", "convert . out2.safetensors"}) {
    fs::remove(folder_ / "out.safetensors");
    expect_error(run(command), 1, {"folder '.' holds no *.safetensors", "and no checkpoint"});
  }
}

TEST_F(Program, ConvertRefusesBeforeItWrites) {
  write("in.safetensors", kRareValues);
  const auto convert = [&](const std::string& arguments) {
    return run("convert in.safetensors out/new.safetensors " + arguments);
  };
  expect_error(run("convert in.safetensors"), 2, {"out is required"});
  expect_error(run("convert in.safetensors ''"), 2, {"'' is not an output"});
  for (const char* other : {"c.pt", "new/c.ckpt", "c.safetensor"})
    expect_error(run(std::string("convert in.safetensors ") + other), 2,
                 {other, "what is written are safetensors", "c.safetensors"});
  expect_error(convert("--dtype bf17"), 2, {"'bf17'", "did you mean 'bf16'?", "fp64, fp32, fp16"});
  expect_error(convert("--only '*'"), 2, {"--only", "give --dtype"});
  for (const char* size : {"2GX", "GB", "-1GB", "0", "nan", "inf", "2 GB", "0.1B"})
    expect_error(convert(std::string("--max-shard-size '") + size + "'"), 2, {size, "is not a size"});
  for (const char* size : {"1e30", "1000001TB"})
    expect_error(convert(std::string("--max-shard-size ") + size), 2, {size, "is out of range"});
  expect_error(convert("--rename block"), 2, {"'block' has no =>"});
  expect_error(convert("--rename '(=>x'"), 2, {"'(' is not a regular expression"});
  expect_error(convert("--rename '=>x'"), 2, {"the pattern is empty"});
  expect_error(convert("--metadata by"), 2, {"'by' is not a KEY=VALUE pair"});
  expect_error(convert("--dtype bf16 --only 'head.*'"), 1, {"'head.*' matches none"});
  expect_error(convert("--rename 'head=>tail'"), 1, {"the pattern 'head' matches none of the 5 names"});
  expect_error(convert("--strip-prefix model."), 1, {"the pattern 'model.' matches none"});
  expect_error(convert("--rename '.*=>x'"), 1, {"would both be named 'xx'"});
  expect_error(convert("--rename 'block=>$9'"), 2, {"'$9'", "'block'", "unknown substring", "$1"});
  expect_error(convert("--rename 'block=>$'"), 2, {"'$'", "is not valid"});
  expect_error(convert("--rename 'block=>" + std::string(70'000, 'x') + "'"), 1,
               {"the pattern 'block'", "longer than 65536 bytes"});
  // Without the limit, 2^60 ways to match would be tried.
  expect_error(convert("--rename '^=>" + std::string(60, 'a') + "' --rename '(a|aa)+$=>x'"), 1,
               {"the pattern '(a|aa)+$'", "match limit exceeded"});
  expect_error(convert("--rename '^.*$=>'"), 1, {"would have no name"});
  expect_error(convert("--rename 'scale=>__metadata__'"), 1, {"__metadata__"});
  expect_error(run("convert in.safetensors in.safetensors --overwrite"), 2, {"is the input itself"});
  expect_error(run("convert absent.safetensors out.safetensors"), 1, {"No such file"});
  expect_error(run("convert in.safetensors in.safetensors/x.safetensors"), 1, {"in.safetensors"});
  expect_error(convert("--key-map /dev/zero"), 1, {"/dev/zero", "has more than 16.0 MiB"});
  write("list.yaml", "- a\n");
  expect_error(convert("--key-map list.yaml"), 2, {"list.yaml", "must be a map"});
  write("deep.yaml", "a: x\nb: [y]\n");
  expect_error(convert("--key-map deep.yaml"), 2, {"deep.yaml:2:", "one pattern and one replacement"});
  write("twice.yaml", "a: x\na: y\n");
  expect_error(convert("--key-map twice.yaml"), 2, {"twice.yaml:2:", "is listed twice"});
  expect_error(convert("--key-map absent.yaml"), 1, {"absent.yaml", "existing YAML file"});
  write("cut.safetensors", kRareValues.substr(0, kRareValues.size() - 1));
  expect_error(run("convert cut.safetensors out.safetensors"), 1, {"truncated"});
}

TEST_F(Program, ConvertOnAFullDiskLeavesNothing) {
  write("in.safetensors", zeros(1 << 20));
  // Blocks of 512 or 1024 bytes, depending on the shell: enough for the message, not for a megabyte.
  for (const char* sharded : {"", "--max-shard-size 1MB"})
    expect_error(
        run("--version; ulimit -f 8; trap '' XFSZ; " MANTISSA_PROGRAM " convert in.safetensors new/net " +
            std::string(sharded)),
        1, {"File too large; raise the limit"});
}

// Three times 128 MiB of zeros. The file is sparse, so it takes no disk space.
TEST_F(Program, ConvertAndInspectNeedLittleMemory) {
  const uint64_t bytes = 3ULL << 27;
  write("in.safetensors", header_of_zeros(bytes));
  const uint64_t header = fs::file_size(folder_ / "in.safetensors");
  fs::resize_file(folder_ / "in.safetensors", header + bytes);
  const auto peak_kib = [&](const std::string& arguments) {
    const Outcome outcome =
        run(arguments +
            " >/dev/null & pid=$!; peak=0; while [ -e /proc/$pid/status ]; do "
            "now=$(sed -n 's/VmHWM:[^0-9]*\\([0-9]*\\).*/\\1/p' /proc/$pid/status); "
            "[ \"${now:-0}\" -gt $peak ] && peak=$now; sleep 0.02; done; echo $peak; wait $pid");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return std::atoll(outcome.out.c_str());
  };
  const int64_t least = peak_kib("inspect --no-values in.safetensors");
  for (const char* command : {"inspect in.safetensors", "convert in.safetensors out.safetensors --dtype bf16",
                              "convert in.safetensors out2 --max-shard-size 1MB"}) {
    const int64_t peak = peak_kib(command);
    EXPECT_GT(peak, 0);
    EXPECT_LT(peak - least, 100 << 10) << command;
  }
  EXPECT_EQ(fs::file_size(folder_ / "out.safetensors"), bytes / 2 + 8 + 72);
}

TEST_F(Program, ConvertInterruptedLeavesNothing) {
  const uint64_t bytes = 3ULL << 30;
  write("in.safetensors", header_of_zeros(bytes));
  fs::resize_file(folder_ / "in.safetensors", fs::file_size(folder_ / "in.safetensors") + bytes);
  const Outcome outcome =
      run("convert in.safetensors new/out.safetensors --dtype fp8-e4m3 & pid=$!; for i in $(seq 300); do "
          "ls new/.out* >/dev/null 2>&1 && break; sleep 0.05; done; kill -TERM $pid; wait $pid");
  EXPECT_EQ(outcome.status, 143);
  EXPECT_THAT(outcome.left, testing::IsEmpty());
}

}  // namespace
}  // namespace mantissa::cli::weights_test
