// Tests of runs that train adapters: fit --lora, --adapter, and the commands for trained models.
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"

namespace mantissa::cli::adapters_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::set<std::string> keys(const std::map<std::string, std::string>& map) {
  std::set<std::string> found;
  for (const auto& [key, value] : map) found.insert(key);
  return found;
}

class Adapters : public Program {
 protected:
  void SetUp() override {
    Program::SetUp();
    // The base model that adapters are trained on.
    ASSERT_EQ(fit("--model mlp --max-epochs 2 --output base").status, 0);
  }

  Outcome tune(const std::string& arguments) const {
    return fit(
        "--model mlp --weights base/weights.safetensors --lr 0.05 --lr-schedule constant --max-epochs 2 " +
        arguments);
  }
  json result(const std::string& run) const { return json::parse(read(folder_ / run / "result.json")); }

  /// Returns the tensors of a safetensors file as bytes by name.
  std::map<std::string, std::string> tensors(const std::string& file) const {
    const std::string bytes = read(folder_ / file);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    std::map<std::string, std::string> found;
    const json header = json::parse(bytes.substr(8, length));
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const auto begin = entry["data_offsets"][0].get<size_t>(), end = entry["data_offsets"][1].get<size_t>();
      found[name] = bytes.substr(8 + length + begin, end - begin);
    }
    return found;
  }
};

TEST_F(Adapters, TrainOnlyThemselvesAndAreSavedInPeftsForm) {
  const Outcome tuned = tune("--lora r=4,alpha=4,dropout=0.1,rslora,dora --output run");
  ASSERT_EQ(tuned.status, 0) << tuned.err;
  EXPECT_THAT(tuned.err, testing::IsEmpty());
  const json config = json::parse(read(folder_ / "run/adapter/adapter_config.json"));
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 4);
  EXPECT_EQ(config["lora_dropout"], 0.1);
  EXPECT_EQ(config["use_rslora"], true);
  EXPECT_EQ(config["use_dora"], true);
  EXPECT_EQ(config["base_model_name_or_path"], "base/weights.safetensors");
  const auto base = tensors("base/weights.safetensors"), model = tensors("run/weights.safetensors"),
             adapter = tensors("run/adapter/adapter_model.safetensors");
  for (const auto& [name, bytes] : base) EXPECT_TRUE(model.at(name) == bytes) << name << " was frozen";
  size_t trained = 0;
  for (const auto& [name, bytes] : adapter) {
    EXPECT_THAT(name, testing::StartsWith("base_model.model."));
    trained += bytes.size() / 4;
    std::string own = name.substr(std::string("base_model.model.").size());
    for (const std::string kind : {"lora_A", "lora_B", "lora_magnitude_vector"})
      if (const size_t at = own.find("." + kind); at != std::string::npos)
        own = own.substr(0, at) + "." + kind + ".default.weight";
    EXPECT_TRUE(model.at(own) == bytes) << name;
  }
  EXPECT_EQ(result("run")["trained_parameters"], trained);
  EXPECT_LT(result("run")["val_loss"].get<double>(), result("base")["val_loss"].get<double>());
}

TEST_F(Adapters, AResumedRunEqualsOneThatWasNotInterrupted) {
  for (const std::string mode : {"32-true", "bf16-true", "16-true", "16-mixed"}) {
    const std::string words =
        "--lora r=4,dropout=0.2,dora --ema-decay 0.9 --gradient-clip-val 1 "
        "--accumulate-grad-batches 2 --optimizer fused-adamw --precision " +
        mode + " --output ";
    ASSERT_EQ(tune(words + "whole-" + mode).status, 0);
    ASSERT_EQ(tune(words + "half-" + mode + " --max-epochs 1").status, 0) << mode;
    const Outcome resumed = run("resume --quiet half-" + mode + " --max-epochs 2");
    ASSERT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_THAT(resumed.err, testing::IsEmpty());
    for (const char* const file : {"weights.safetensors", "adapter/adapter_model.safetensors", "metrics.csv"})
      EXPECT_TRUE(read(folder_ / ("whole-" + mode) / file) == read(folder_ / ("half-" + mode) / file))
          << mode << " " << file;
  }
}

TEST_F(Adapters, TrainedRunsAreValidatedTestedAndPredicted) {
  ASSERT_EQ(tune("--lora r=4,targets=all-linear --output run").status, 0);
  const Outcome validated = run("validate run --device cpu --quiet --json -");
  ASSERT_EQ(validated.status, 0) << validated.err;
  const double loss = result("run")["val_loss"];
  EXPECT_NEAR(json::parse(validated.out)["val_loss"].get<double>(), loss, 1e-6);
  EXPECT_EQ(run("test run --device cpu --quiet").status, 0);
  EXPECT_THAT(run("predict run --device cpu --quiet").out, HasSubstr("index,class,probability\n0,"));
}

TEST_F(Adapters, AreMergedIntoAPlainModel) {
  ASSERT_EQ(tune("--lora r=4,dora --precision 32-true --output run").status, 0);
  const Outcome merged = run("merge run --device cpu --output merged.safetensors");
  ASSERT_EQ(merged.status, 0) << merged.err;
  EXPECT_THAT(merged.out,
              AllOf(HasSubstr("into merged.safetensors"), HasSubstr("nothing is lost by rounding")));
  EXPECT_EQ(keys(tensors("merged.safetensors")), keys(tensors("base/weights.safetensors")));
  const Outcome validated =
      run("validate base --weights merged.safetensors --precision 32-true --device cpu --quiet --json -");
  ASSERT_EQ(validated.status, 0) << validated.err;
  EXPECT_EQ(run("validate run --weights merged.safetensors --device cpu --quiet").status, 0)
      << "without the adapter";
  // The sums are rounded once more.
  EXPECT_NEAR(json::parse(validated.out)["val_loss"].get<double>(), result("run")["val_loss"].get<double>(),
              1e-4);
  const std::string before = read(folder_ / "run/adapter/adapter_model.safetensors");
  expect_error(run("merge run --device cpu --output run/adapter/adapter_model.safetensors"), 2,
               {"is a file of the run in"});
  EXPECT_TRUE(read(folder_ / "run/adapter/adapter_model.safetensors") == before);
  expect_error(run("merge base --device cpu --output other.safetensors"), 2, {"base trained no adapter"});
  expect_error(run("merge run --device cpu --output net.pt"), 2,
               {"'net.pt' ends in .pt", "name it net.safetensors"});
  expect_error(run("merge run --weights base/weights.safetensors --device cpu --output other.safetensors"), 2,
               {"--weights base/weights.safetensors has no adapter", "leave it out"});
  expect_error(run("merge run --device cpu --output no/such/folder/file"), 1, {"no/such/folder"});
}

TEST_F(Adapters, AreTrainedOn4BitWeights) {
  for (const std::string settings : {"r=4", "r=4,dora"}) {
    const std::string words = "--precision nf4-dq --lora " + settings + " --output ", name = "q-" + settings;
    const Outcome whole = tune(words + name);
    ASSERT_EQ(whole.status, 0) << whole.err;
    EXPECT_THAT(whole.err, testing::IsEmpty());
    EXPECT_LT(result(name)["val_loss"].get<double>(), result("base")["val_loss"].get<double>()) << settings;
    EXPECT_EQ(tensors(name + "/weights.safetensors").count("layers.0.weight.quant_state.bitsandbytes__nf4"),
              1u);
    ASSERT_EQ(tune(words + "half-" + name + " --max-epochs 1").status, 0);
    const Outcome resumed = run("resume --quiet half-" + name + " --max-epochs 2");
    ASSERT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_THAT(resumed.err, testing::IsEmpty());
    for (const char* const file : {"weights.safetensors", "adapter/adapter_model.safetensors", "metrics.csv"})
      EXPECT_TRUE(read(folder_ / name / file) == read(folder_ / ("half-" + name) / file)) << settings << file;
    const Outcome validated = run("validate " + name + " --device cpu --quiet --json -");
    ASSERT_EQ(validated.status, 0) << validated.err;
    EXPECT_NEAR(json::parse(validated.out)["val_loss"].get<double>(), result(name)["val_loss"].get<double>(),
                1e-6);
    EXPECT_EQ(run("predict " + name + " --device cpu --quiet").status, 0);
    EXPECT_THAT(run("merge " + name + " --device cpu --output " + name + "-m.safetensors").out,
                HasSubstr("into " + name + "-m.safetensors"));
    EXPECT_THAT(run("merge " + name + " --device cpu --dequantize --overwrite --output p.safetensors").out,
                HasSubstr("nothing is lost by rounding"));
    EXPECT_EQ(keys(tensors("p.safetensors")), keys(tensors("base/weights.safetensors")));
  }
}

TEST_F(Adapters, TheHelpOfMergeSaysWhatIsExact) {
  const Outcome help = run("merge --help");
  ASSERT_EQ(help.status, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("nothing is lost in fp32, and fp16 and bf16 round once"),
                              HasSubstr("they are quantized again, and the error is printed"),
                              Not(HasSubstr("which is exact"))));
}

TEST_F(Adapters, AreMergedInTheDtypeOfTheRunsWeights) {
  const auto dtype_and_mode = [&](const std::string& file) {
    const Outcome done = run("inspect --json --no-values " + file);
    EXPECT_EQ(done.status, 0) << done.err;
    const json seen = json::parse(done.out)[0];
    std::set<std::string> dtypes;
    for (const auto& tensor : seen["tensors"]) dtypes.insert(tensor["dtype"]);
    return std::pair(dtypes, seen["metadata"]["precision"].get<std::string>());
  };
  const auto merged = [&](const std::string& arguments) {
    const Outcome done = run("merge --device cpu --overwrite --output m.safetensors " + arguments);
    EXPECT_EQ(done.status, 0) << done.err;
    return dtype_and_mode("m.safetensors");
  };
  using Dtypes = std::set<std::string>;
  ASSERT_EQ(tune("--lora r=4 --precision bf16-true --output bf16").status, 0);
  EXPECT_EQ(merged("bf16"), std::pair(Dtypes{"BF16"}, std::string("bf16-true")));
  EXPECT_EQ(merged("bf16 --precision 32-true").second, "bf16-true") << "what the file holds decides";
  EXPECT_EQ(merged("bf16 --dtype fp32"), std::pair(Dtypes{"F32"}, std::string("32-true")));
  EXPECT_EQ(merged("bf16 --dtype fp16"), std::pair(Dtypes{"F16"}, std::string("16-true")));
  EXPECT_THAT(run("merge bf16 --device cpu --output n.safetensors").out,
              HasSubstr("the largest relative error is"))
      << "rounding is reported";
  ASSERT_EQ(tune("--lora r=4 --precision bf16-mixed --max-steps 2 --output mixed").status, 0);
  EXPECT_EQ(merged("mixed"), std::pair(Dtypes{"F32"}, std::string("32-true")));
  ASSERT_EQ(tune("--lora r=4 --precision nf4 --max-steps 2 --output nf4").status, 0);
  EXPECT_EQ(merged("nf4").second, "nf4");
  EXPECT_EQ(merged("nf4 --dequantize"), std::pair(Dtypes{"F32"}, std::string("32-true")));
  EXPECT_EQ(merged("nf4 --dequantize --dtype bf16"), std::pair(Dtypes{"BF16"}, std::string("bf16-true")));
  expect_error(run("merge bf16 --output o.safetensors --dtype fp64"), 2,
               {"--dtype fp64", "fp32, fp16 or bf16"});
  expect_error(run("merge bf16 --output o.safetensors --dtype bf17"), 2,
               {"'bf17'", "did you mean 'bf16'", "choose from fp32, fp16, bf16\n"});
}

/// bitsandbytes can store the codes of 4-bit weights as bfloat16, which is not the dtype of the weights.
TEST_F(Adapters, TheStorageOfCodesIsNotTheDtypeOfTheWeights) {
  ASSERT_EQ(tune("--lora r=4 --precision nf4 --max-steps 2 --output run").status, 0);
  const std::string bytes = read(folder_ / "run/weights.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  json header = json::parse(bytes.substr(8, length));
  size_t stored = 0;
  for (auto& [name, entry] : header.items()) {
    if (!header.contains(name + ".absmax")) continue;
    entry["dtype"] = "BF16";
    entry["shape"] = {entry["shape"][0].get<int64_t>() / 2, 1};
    ++stored;
  }
  EXPECT_GT(stored, 0u);
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t size = text.size();
  write("run/weights.safetensors",
        std::string(reinterpret_cast<const char*>(&size), 8) + text + bytes.substr(8 + length));
  const Outcome merged = run("merge run --device cpu --dequantize --output plain.safetensors");
  ASSERT_EQ(merged.status, 0) << merged.err;
  const json seen = json::parse(run("inspect --json --no-values plain.safetensors").out)[0];
  EXPECT_EQ(seen["metadata"]["precision"], "32-true");
  for (const auto& tensor : seen["tensors"]) EXPECT_EQ(tensor["dtype"], "F32") << tensor["name"];
}

TEST_F(Adapters, DequantizedFilesHaveNoPackedWeights) {
  std::string text;
  for (int i = 0; i < 600; ++i) text += "line " + std::to_string(i * 7919) + "\n";
  write("text.txt", text);
  const Outcome tuned =
      fit("--model gpt-tiny --data text:text.txt --precision nf4-dq --lora r=2,targets=qkv+projection "
          "--max-steps 1 --limit-val-batches 1 --output run");
  ASSERT_EQ(tuned.status, 0) << tuned.err;
  const Outcome merged = run("merge run --device cpu --dequantize --output plain.safetensors");
  ASSERT_EQ(merged.status, 0) << merged.err;
  for (const auto& [name, values] : tensors("plain.safetensors"))
    EXPECT_THAT(name, Not(HasSubstr("quant_state"))) << "layers without an adapter are plain, too";
  const json seen = json::parse(run("inspect --json --no-values plain.safetensors").out)[0];
  EXPECT_EQ(seen["metadata"]["precision"], "32-true");
  const std::string validate = "validate run --weights plain.safetensors --device cpu --quiet";
  EXPECT_THAT(run(validate).err, AllOf(HasSubstr("'plain.safetensors' has its weights in float, and nf4-dq"),
                                       HasSubstr("--precision 32-true")))
      << "whoever restored the weights does not want them quantized unseen";
  for (const std::string mode : {"32-true", "nf4-dq"})
    EXPECT_THAT(run(validate + " --precision " + mode).err, testing::IsEmpty()) << "as asked for: " << mode;
  const Outcome converted = run("convert plain.safetensors again.safetensors --to nf4-dq");
  EXPECT_EQ(converted.status, 0) << converted.err;

  const Outcome lossy = run("merge run --device cpu --output packed.safetensors");
  EXPECT_EQ(lossy.status, 0);
  EXPECT_THAT(run("validate run --weights packed.safetensors --device cpu --quiet").err, testing::IsEmpty());
  EXPECT_THAT(lossy.out, HasSubstr("error relative to the adapter's change is "));
  EXPECT_THAT(lossy.err, AllOf(HasSubstr("hardly better than the base model"), HasSubstr("--dequantize")))
      << "one step changes less than 4 bits can tell";
}

TEST_F(Adapters, ARunOnQuantizedWeightsResumesInEveryModeThatCanHaveThem) {
  const auto half = [&](const std::string& mode, const std::string& name) {
    ASSERT_EQ(tune("--precision " + mode + " --lora r=4,dora --max-epochs 1 --output " + name).status, 0);
  };
  for (const std::string mode : {"32-true", "bf16-true", "16-mixed"}) {
    for (const std::string base : {"nf4-dq", "int8"}) {
      const std::string name = base + "-" + mode;
      half(base, name);
      const Outcome resumed = run("resume " + name + " --quiet --max-epochs 2 --precision " + mode);
      ASSERT_EQ(resumed.status, 0) << name << resumed.err;
      EXPECT_THAT(resumed.err, HasSubstr("weights are restored from 4 or 8 bits")) << name;
      EXPECT_THAT(resumed.err, Not(HasSubstr("train again"))) << "the adapter freezes them";
      const auto after = tensors(name + "/weights.safetensors");
      EXPECT_EQ(after.count("layers.0.weight.absmax") + after.count("layers.0.SCB"), 0u) << name;
      EXPECT_EQ(after.count("layers.0.lora_A.default.weight"), 1u) << name;
      EXPECT_LT(result(name)["val_loss"].get<double>(), result("base")["val_loss"].get<double>()) << name;
    }
  }
  half("32-true", "float");
  const Outcome quantized = run("resume float --quiet --max-epochs 2 --precision nf4");
  ASSERT_EQ(quantized.status, 0) << quantized.err;
  EXPECT_THAT(quantized.err, HasSubstr("weights are quantized"));
  half("nf4", "other");
  expect_error(run("resume other --quiet --max-epochs 2 --precision fp4"), 1,
               {"is saved as nf4, blocks of 64", "choose the mode nf4"});
}

TEST_F(Adapters, ADamagedAdapterFailsAsOtherDamagedFilesDo) {
  ASSERT_EQ(tune("--lora r=4 --max-steps 2 --output run").status, 0);
  const fs::path file = folder_ / "run/adapter/adapter_model.safetensors";
  const std::string whole = read(file);
  write("run/adapter/adapter_model.safetensors", whole.substr(0, whole.size() - 5));
  expect_error(tune("--adapter run/adapter --output again"), 1, {"adapter_model.safetensors", "truncated"});
  write("run/adapter/adapter_config.json", "{");
  expect_error(tune("--adapter run/adapter --output again"), 1, {"adapter_config.json"});
}

TEST_F(Adapters, AFileWithAnAdapterIsNoPlainModel) {
  ASSERT_EQ(tune("--lora r=4 --max-steps 2 --output run").status, 0);
  const Outcome refused = fit("--model mlp --weights run/weights.safetensors --max-steps 2");
  expect_error(refused, 1,
               {"tensors of an adapter, such as 'layers.0.lora_A.default.weight'", "mantissa merge"});
  EXPECT_THAT(refused.err, Not(HasSubstr("layers.2.lora_A"))) << "one of them is enough";
}

TEST_F(Adapters, AQuantizedFileIsABase) {
  ASSERT_EQ(tune("--precision nf4 --lora r=4 --max-epochs 1 --output q").status, 0);
  ASSERT_EQ(run("merge q --device cpu --output q4.safetensors").status, 0);
  const Outcome tuned =
      fit("--model mlp --weights q4.safetensors --precision nf4 --lora r=2 --max-steps 3 --output again");
  ASSERT_EQ(tuned.status, 0) << tuned.err;
  const auto before = tensors("q4.safetensors"), after = tensors("again/weights.safetensors");
  EXPECT_TRUE(before.at("layers.0.weight") == after.at("layers.0.weight")) << "the codes are kept";
}

TEST_F(Adapters, AnotherRunContinuesAnAdapter) {
  ASSERT_EQ(tune("--lora r=4,dora --output first").status, 0);
  const Outcome second = tune("--adapter first/adapter --output second --lr 0.02");
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_LT(result("second")["train_loss"].get<double>(), result("first")["train_loss"].get<double>());
  EXPECT_EQ(json::parse(read(folder_ / "second/adapter/adapter_config.json"))["use_dora"], true);
  // The run's own copy of the settings is enough from now on.
  fs::rename(folder_ / "first", folder_ / "elsewhere");
  const Outcome validated = run("validate second --device cpu --quiet");
  EXPECT_EQ(validated.status, 0) << validated.err;
  const Outcome resumed = run("resume second --quiet --max-epochs 3");
  EXPECT_EQ(resumed.status, 0) << resumed.err;
}

TEST_F(Adapters, SettingsThatCannotBeMeantAreErrors) {
  const auto refused = [&](const std::string& arguments, const std::vector<std::string>& parts) {
    expect_error(tune(arguments), 2, parts);
  };
  refused("--lora r=4,rank=2", {"--lora has no setting 'rank'", "r, alpha, dropout"});
  refused("--lora \"$(printf 'r=4\\nalpha=8')\"", {"'r=4?alpha=8' has a line break", "in one line"});
  refused("--lora alpa=2", {"'alpa'", "did you mean 'alpha'"});
  refused("--lora r", {"--lora: r needs a value", "r=16"});
  refused("--lora r=four", {"--lora: r", "'four'"});
  refused("--lora r=0", {"--lora: r must be 1"});
  refused("--lora r=4,alpha=0", {"--lora: alpha is 0", "trains nothing"});
  refused("--lora r=4,targets=layers,projection",
          {"no setting 'projection'", "join the names of layers with +"});
  refused("--lora r=4,r=5", {"'r' twice"});
  refused("--lora dora=yes", {"dora takes no value", "dora=yes"});
  refused("--lora r=4,dropout=1", {"--lora: dropout must be at least 0"});
  refused("--lora targets=a++b", {"empty name"});
  refused("--lora targets=heat",
          {"--lora: targets has 'heat'", "no module's name ends so", "end in 0, 1, 2"});
  refused("--adapter base", {"'base' holds no adapter", "(adapter in the run's folder)"});
  refused("--lora r=4,exclude=heat", {"--lora: exclude has 'heat'", "no module's name ends so"});
  refused("--lora r=4, --max-epochs 1", {"--lora 'r=4,' has an empty setting"});
  refused("--lora r=4 --adapter base", {"--adapter base", "leave one of the two out"});
  refused("--lora r=4 --precision 64-true", {"--lora", "64-true"});
  refused("--adapter base", {"'base' holds no adapter", "adapter_config.json"});
}

TEST_F(Adapters, AllModesLeaveOutTheOneOfFloat64) {
  const Outcome all = fit("--model mlp --precision all --lora r=2 --max-steps 3 --output all");
  EXPECT_EQ(all.status, 0) << all.err;
  EXPECT_THAT(all.err, AllOf(HasSubstr("64-true is left out"), HasSubstr("float32")));
  EXPECT_TRUE(fs::exists(folder_ / "all/bf16-true/adapter/adapter_model.safetensors"));
}

TEST_F(Adapters, ThePlanCountsFewerGradientsAndStates) {
  const Outcome plain = fit("--model mlp --max-steps 1 --plan --output plain --json plain.json");
  const Outcome lora = fit("--model mlp --max-steps 1 --plan --lora r=2 --output lora --json lora.json");
  ASSERT_EQ(lora.status, 0) << lora.err;
  const auto row = [&](const char* file) { return json::parse(read(folder_ / file))["memory_plan"][0]; };
  EXPECT_LT(row("lora.json")["gradients"].get<int64_t>(), row("plain.json")["gradients"].get<int64_t>());
}

TEST_F(Adapters, AResumeThatFailsLeavesTheTrainedAdapter) {
  ASSERT_EQ(tune("--lora r=4 --max-epochs 1 --output run").status, 0);
  const std::string trained = read(folder_ / "run/adapter/adapter_model.safetensors");
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "run/checkpoints"))
    if (entry.path().filename() == "state.safetensors") fs::resize_file(entry.path(), 10);
  EXPECT_EQ(run("resume run --quiet --max-epochs 2").status, 1);
  EXPECT_TRUE(read(folder_ / "run/adapter/adapter_model.safetensors") == trained);
}

TEST_F(Adapters, ARunOnAPartlyQuantizedFileResumesWithTheSameLayers) {
  ASSERT_EQ(run("convert base/weights.safetensors part.safetensors --to nf4 --ignore 'layers.0*'").status, 0);
  const std::string words =
      "--model mlp --weights part.safetensors --precision nf4 --lora r=2,targets=layers.2 --max-epochs ";
  ASSERT_EQ(fit(words + "2 --output whole").status, 0);
  ASSERT_EQ(fit(words + "1 --output half").status, 0);
  ASSERT_EQ(run("resume half --quiet --max-epochs 2").status, 0);
  const auto whole = tensors("whole/weights.safetensors"), half = tensors("half/weights.safetensors");
  EXPECT_EQ(keys(whole), keys(half));
  EXPECT_TRUE(whole.count("layers.0.weight.absmax") == 1) << "the mode decides which layers are quantized";
}

TEST_F(Adapters, AFileOfAnotherFormatIsRefusedAtOnce) {
  ASSERT_EQ(run("convert base/weights.safetensors q.safetensors --to nf4 --blocksize 128").status, 0);
  const Outcome refused = fit("--model mlp --weights q.safetensors --precision nf4 --lora r=2 --max-steps 2");
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("blocks of 128"), HasSubstr("choose the mode nf4")));
}

}  // namespace
}  // namespace mantissa::cli::adapters_test
