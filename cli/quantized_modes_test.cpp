// Runs in modes with quantized weights: training, resuming, evaluating, and files of weights.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"

namespace mantissa::cli::quantized_modes_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// A short run on the embedded digits.
const std::string kShort = "--data digits --model mlp --seed 3 ";

class QuantizedRuns : public Program {
 protected:
  Outcome train(const std::string& arguments, const std::string& output, int steps = 6) const {
    const Outcome done =
        fit(kShort + arguments + " --max-steps " + std::to_string(steps) + " --output " + output);
    EXPECT_EQ(done.status, 0) << done.err;
    return done;
  }
  json inspected(const std::string& file) const {
    const Outcome done = run("inspect --json --no-values " + file);
    EXPECT_EQ(done.status, 0) << done.err;
    return done.status == 0 ? json::parse(done.out)[0] : json();
  }
  std::map<std::string, std::string> dtypes(const std::string& file) const {
    std::map<std::string, std::string> found;
    const json seen = inspected(file);
    for (const auto& tensor : seen["tensors"]) found[tensor["name"]] = tensor["dtype"];
    return found;
  }
  /// Returns the bytes of each tensor of a file that belongs to the weight of a layer: codes and scales, or floats.
  std::map<std::string, std::string> layers(const std::string& file) const {
    const std::string all = read(folder_ / file);
    uint64_t length = 0;
    std::memcpy(&length, all.data(), std::min(all.size(), sizeof length));
    std::map<std::string, std::string> found;
    const json header = json::parse(all.substr(sizeof length, length));
    for (const auto& [name, entry] : header.items()) {
      if (name.find(".weight") == std::string::npos) continue;
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      found[name] = all.substr(sizeof length + length + begin, end - begin);
    }
    return found;
  }
  double val_loss(const std::string& arguments) const {
    const Outcome done = run("validate --device cpu --quiet --json - " + arguments);
    EXPECT_EQ(done.status, 0) << done.err;
    return done.status == 0 ? json::parse(done.out)["val_loss"].get<double>() : -1;
  }
};

TEST_F(QuantizedRuns, EveryModeTrainsFloatParametersAndSavesCodes) {
  for (const std::string mode : {"nf4", "nf4-dq", "fp4", "fp4-dq", "int8"}) {
    const Outcome done = train("--precision " + mode, mode);
    const std::string said = "--precision " + mode + " quantizes the weights of linear layers";
    ASSERT_THAT(done.err, HasSubstr(said));
    EXPECT_EQ(done.err.find(said, done.err.find(said) + 1), std::string::npos) << "it says so once";
    const auto kinds = dtypes(mode + "/weights.safetensors");
    int codes = 0;
    for (const auto& [name, dtype] : kinds) codes += name.ends_with(".weight") && dtype != "F32";
    EXPECT_GT(codes, 0) << mode;
    const auto result = json::parse(read(folder_ / mode / "result.json"));
    EXPECT_EQ(result["precision"], mode);
    EXPECT_EQ(result["skipped_steps"], 0);
  }
}

TEST_F(QuantizedRuns, AResumedRunEqualsAnUninterruptedOne) {
  for (const std::string mode : {"nf4-dq", "int8"}) {
    // A cosine schedule depends on the length of the run, which differs here.
    const std::string arguments = "--lr-schedule constant --precision " + mode;
    train(arguments, mode + "-whole");
    train(arguments, mode + "-parts", 3);
    const Outcome resumed = run("resume " + mode + "-parts --quiet --max-steps 6");
    EXPECT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_TRUE(read(folder_ / (mode + "-whole") / "weights.safetensors") ==
                read(folder_ / (mode + "-parts") / "weights.safetensors"))
        << mode;
  }
}

TEST_F(QuantizedRuns, ATrainedRunIsValidatedWithItsCodesAndInOtherModes) {
  train("--precision nf4-dq --blocksize 32", "run");
  const auto result = json::parse(read(folder_ / "run" / "result.json"));
  EXPECT_DOUBLE_EQ(val_loss("run"), result["val_loss"].get<double>());
  const double restored = val_loss("run --precision 32-true");
  EXPECT_NEAR(restored, val_loss("run"), 0.02);
  EXPECT_NE(restored, val_loss("run")) << "products in bf16";
  EXPECT_EQ(run("predict run --device cpu --quiet --output predictions.csv").status, 0);
  std::filesystem::remove(folder_ / "run" / "weights.safetensors");
  EXPECT_DOUBLE_EQ(val_loss("run"), result["val_loss"].get<double>()) << "from the checkpoint";
}

TEST_F(QuantizedRuns, FloatWeightsAreQuantizedAndQuantizedOnesAreTakenOrRestored) {
  train("--precision 32-true", "float");
  const std::string weights = " --weights float/weights.safetensors";
  train("--precision nf4" + weights, "nf4");
  // Loading a quantized file keeps its codes, and quantizing the float file gives equal ones.
  train("--precision nf4 --weights nf4/weights.safetensors", "again");
  EXPECT_EQ(dtypes("again/weights.safetensors"), dtypes("nf4/weights.safetensors"));
  // The mode rounds weights to float16 before it quantizes them, as Lightning does.
  ASSERT_EQ(run("convert float/weights.safetensors half.safetensors --dtype fp16").status, 0);
  ASSERT_EQ(run("convert half.safetensors converted.safetensors --to nf4").status, 0);
  const auto codes = layers("nf4/weights.safetensors");
  EXPECT_FALSE(codes.empty());
  EXPECT_TRUE(layers("again/weights.safetensors") == codes);
  EXPECT_TRUE(layers("converted.safetensors") == codes);
  EXPECT_NEAR(val_loss("nf4"), val_loss("float"), 0.3);
  EXPECT_NEAR(val_loss("float --precision nf4"), val_loss("float"), 0.3);

  const Outcome restored = train("--precision 32-true --weights nf4/weights.safetensors", "restored");
  EXPECT_THAT(restored.err, AllOf(HasSubstr("weights in 4 or 8 bits, restored to float32"),
                                  HasSubstr("--precision 32-true")));
  for (const auto& [name, dtype] : dtypes("restored/weights.safetensors")) EXPECT_EQ(dtype, "F32") << name;
}

TEST_F(QuantizedRuns, ARunIsResumedInAnotherMode) {
  train("--precision 32-true", "float", 3);
  const Outcome quantized = run("resume float --quiet --max-steps 6 --precision int8");
  EXPECT_EQ(quantized.status, 0) << quantized.err;
  EXPECT_THAT(quantized.err, AllOf(HasSubstr("weights are quantized"), Not(HasSubstr("random"))));
  EXPECT_THAT(run("validate float --device cpu --quiet --precision nf4").err, Not(HasSubstr("random")));
  train("--precision nf4 --blocksize 128", "nf4", 3);
  const Outcome restored = run("resume nf4 --quiet --max-steps 6 --precision 32-true");
  EXPECT_EQ(restored.status, 0) << restored.err;
  EXPECT_THAT(restored.err, HasSubstr("restored from 4 or 8 bits and train again"));
  train("--precision nf4", "other", 3);
  const Outcome refused = run("resume other --quiet --max-steps 6 --precision fp4-dq");
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(
      refused.err,
      AllOf(HasSubstr("'other/checkpoints' cannot be loaded: '"),
            HasSubstr(".weight' is saved as nf4, blocks of 64, and the model has fp4-dq, blocks of 64"),
            HasSubstr("choose the mode nf4 with blocksize 64"), Not(HasSubstr("PartsLoader"))));
}

TEST_F(QuantizedRuns, OptionsReachTheMode) {
  train("--precision nf4 --quant-dtype float32 --blocksize 128", "run");
  const std::string config = read(folder_ / "run" / "config.yaml");
  EXPECT_THAT(config, AllOf(HasSubstr("blocksize: 128"), HasSubstr("quant_dtype: float32")));
  const auto all = dtypes("run/weights.safetensors");
  // The name of a linear layer of the model, which then stays in float.
  std::string layer;
  for (const auto& [name, dtype] : all)
    if (layer.empty() && name.ends_with(".weight.absmax")) layer = name.substr(0, name.size() - 14);
  ASSERT_NE(layer, "");
  train("--precision nf4 --ignore-modules " + layer, "ignoring");
  EXPECT_EQ(dtypes("ignoring/weights.safetensors").at(layer + ".weight"), "F32");
  train("--precision nf4 --ignore-modules ' unknown , " + layer + " '", "blanks");
  EXPECT_EQ(dtypes("blanks/weights.safetensors").at(layer + ".weight"), "F32");
}

TEST_F(QuantizedRuns, WrongOptionsAreRefused) {
  expect_error(fit(kShort + "--precision int8 --quant-dtype bfloat16"), 2,
               {"'int8' with --quant-dtype bfloat16", "only works with float16; leave --quant-dtype out"});
  expect_error(fit(kShort + "--precision nf4 --blocksize 100"), 2,
               {"--blocksize 100", "blocks of 100 values", "choose 32"});
  expect_error(fit(kShort + "--precision bf16-mixed --blocksize 64"), 2,
               {"'bf16-mixed' with --blocksize 64", "leave it out"});
  expect_error(fit(kShort + "--precision nf4 --ignore-modules a,,b"), 2, {"--ignore-modules 'a,,b'"});
  expect_error(fit(kShort + "--precision nf4 --quant-dtype half"), 2, {"--quant-dtype 'half'", "float16"});
  expect_error(fit(kShort + "--precision nf4 --quant-dtype bf16"), 2,
               {"--quant-dtype 'bf16' is not a valid value; did you mean 'bfloat16'?"});
}

TEST_F(QuantizedRuns, ShardsAreReadLikeOneFile) {
  train("--precision 32-true", "float");
  for (const std::string to : {"", "--to nf4"}) {
    const std::string mode = to.empty() ? "32-true" : "nf4", shards = "shards-" + mode,
                      one = mode + ".safetensors";
    ASSERT_EQ(run("convert float/weights.safetensors " + one + " " + to).status, 0);
    ASSERT_EQ(run("convert " + one + " " + shards + " --max-shard-size 4kB").status, 0);
    const std::string index = shards + "/model.safetensors.index.json";
    const double expected = val_loss("float --precision " + mode + " --weights " + one);
    for (const std::string& weights : {shards, index}) {
      EXPECT_DOUBLE_EQ(val_loss("float --precision " + mode + " --weights " + weights), expected) << weights;
      train("--precision " + mode + " --weights " + weights,
            mode + "-of-" + (weights == index ? "index" : "folder"));
    }
    train("--precision " + mode + " --weights " + one, mode + "-of-file");
    for (const char* const from : {"index", "folder"})
      EXPECT_TRUE(read(folder_ / (mode + "-of-" + from) / "weights.safetensors") ==
                  read(folder_ / (mode + "-of-file") / "weights.safetensors"))
          << mode << " " << from;
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "shards-nf4"))
    if (entry.path().filename().string().starts_with("model-00002")) std::filesystem::remove(entry.path());
  expect_error(
      fit(kShort + "--precision nf4 --weights shards-nf4"), 1,
      {"model.safetensors.index.json", "the shard 'model-00002", "which is not there; get all shards"});
  std::filesystem::create_directory(folder_ / "empty");
  expect_error(fit(kShort + "--weights empty"), 1, {"'empty' holds no *.safetensors"});
}

TEST_F(QuantizedRuns, ACodeFileWithIgnoredLayersIsLoadedAndRestoredThere) {
  train("--precision nf4", "run");
  const Outcome done =
      train("--precision nf4 --ignore-modules layers.0 --weights run/weights.safetensors", "part");
  EXPECT_THAT(done.err, HasSubstr("has 1 weight in 4 or 8 bits that --precision nf4 leaves in float"));
  EXPECT_EQ(dtypes("part/weights.safetensors").at("layers.0.weight"), "F32");
  EXPECT_EQ(dtypes("part/weights.safetensors").at("layers.2.weight"), "U8");
}

TEST_F(QuantizedRuns, TablesHaveRoomForTheLongestMode) {
  const Outcome all = fit(kShort + "--max-steps 1 --plan --precision int8-training --output run");
  ASSERT_EQ(all.status, 0) << all.err;
  // Every row of the plan ends in the same column.
  std::istringstream lines(all.out);
  std::set<size_t> widths;
  for (std::string line; std::getline(lines, line) && !line.empty();)
    if (!line.starts_with("memory plan")) widths.insert(line.size());
  EXPECT_EQ(widths.size(), 1u) << all.out;
  EXPECT_THAT(all.out, HasSubstr("int8-training *"));
  const size_t table = all.out.find("\nprecision  ", all.out.find("memory plan") + 200);
  ASSERT_NE(table, std::string::npos) << all.out;
  const size_t row = all.out.find("\nint8-training ", table);
  ASSERT_NE(row, std::string::npos) << all.out;
  EXPECT_EQ(all.out.find("device", table) - table, all.out.find("cpu", row) - row);
}

TEST_F(QuantizedRuns, ATruncatedFileIsRefused) {
  write("cut.safetensors", "");
  train("--precision nf4", "run");
  std::string bytes = read(folder_ / "run" / "weights.safetensors");
  write("cut.safetensors", bytes.substr(0, bytes.size() - 5));
  expect_error(fit(kShort + "--precision nf4 --weights cut.safetensors"), 1,
               {"cut.safetensors", "truncated"});
}

TEST_F(QuantizedRuns, AllModesCompareTrainingsOfAllWeights) {
  const Outcome all = fit(kShort + "--max-steps 1 --precision all --output all");
  EXPECT_EQ(all.status, 0) << all.err;
  EXPECT_THAT(all.out, AllOf(HasSubstr("bf16-true"), Not(HasSubstr("nf4"))));
}

}  // namespace
}  // namespace mantissa::cli::quantized_modes_test
