// Tests of runs in FP8: the option --recipe, the table of layers, and runs that are killed and resumed.
#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"

namespace mantissa::cli::fp8_modes_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Fp8Runs : public Program {
 protected:
  /// Returns the line of an option in the configuration that these arguments print.
  std::string printed(const std::string& arguments, const std::string& option) const {
    const std::string out = fit("--print-config " + arguments).out;
    const size_t begin = out.find("\n" + option + ": ");
    if (begin == std::string::npos) return "none";
    const size_t value = begin + option.size() + 3;
    return out.substr(value, out.find("  #", value) - value);
  }
};

TEST_F(Fp8Runs, F8_40_ARecipeIsATextOrAMap) {
  write("lightning.yaml",
        "precision: transformer-engine\n"
        "recipe: {fp8_format: HYBRID, amax_history_len: 16, amax_compute_algo: max}\n");
  EXPECT_EQ(printed("--config lightning.yaml", "recipe"),
            "fp8_format=HYBRID,amax_history_len=16,amax_compute_algo=max");
  write("named.yaml",
        "precision: fp8-mixed\n"
        "recipe: {disable_rht: true, name: NVFP4BlockScaling}\n");
  EXPECT_EQ(printed("--config named.yaml", "recipe"), "NVFP4BlockScaling,disable_rht=true");
  write("text.yaml", "precision: fp8-mixed\nrecipe: MXFP8BlockScaling\n");
  EXPECT_EQ(printed("--config text.yaml", "recipe"), "MXFP8BlockScaling");
  EXPECT_EQ(printed("--config text.yaml --recipe 'DelayedScaling, reduce_amax=false'", "recipe"),
            "DelayedScaling, reduce_amax=false");
  EXPECT_EQ(printed("--precision fp8-mixed", "recipe"), "auto");
  // The printed configuration can be read again.
  write("again.yaml", fit("--config named.yaml --print-config").out);
  EXPECT_EQ(printed("--config again.yaml", "recipe"), "NVFP4BlockScaling,disable_rht=true");
}

TEST_F(Fp8Runs, WrongRecipesAreRefusedWithTheChoices) {
  const auto refuses = [&](const std::string& recipe, const std::vector<std::string>& parts) {
    expect_error(fit("--precision fp8-mixed --recipe '" + recipe + "'"), 2, parts);
  };
  refuses("DelayedScalin",
          {"--recipe 'DelayedScalin' is unknown", "did you mean 'DelayedScaling'?", "choose from"});
  refuses("amax_history=4",
          {"--recipe DelayedScaling has no setting 'amax_history'", "did you mean 'amax_history_len'?"});
  refuses("amax_history_len=0", {"--recipe: DelayedScaling: amax_history_len is 0"});
  refuses("DelayedScaling,amax_history_len", {"--recipe: amax_history_len needs a value"});
  refuses("fp8_format=E5M2", {"--recipe: fp8_format: E5M2 alone", "HYBRID"});
  refuses("margin=1,margin=2", {"--recipe has 'margin' twice"});
  refuses("MXFP8BlockScaling,name=NVFP4BlockScaling", {"names two recipes"});
  refuses("DelayedScaling,,margin=1", {"has an empty setting"});
  refuses("", {"has an empty setting"});
  refuses("MXFP8BlockScaling,margin=1", {"it is a setting of DelayedScaling"});
  expect_error(fit("--precision bf16-mixed --recipe MXFP8BlockScaling"), 2,
               {"'bf16-mixed' with --recipe MXFP8BlockScaling", "only fp8-mixed, transformer-engine"});
  expect_error(fit("--precision nf4 --fp8-first-and-last true"), 2, {"'nf4' with --fp8-first-and-last true"});
  expect_error(fit("--precision fp8-mixed --device cpu --fp8-native required"), 2,
               {"precision 'fp8-mixed': --fp8-native is required, but cpu cannot", "auto or off"});
  expect_error(fit("--precision bf16-mixed --fp8-native off"), 2, {"'bf16-mixed' with --fp8-native off"});
  write("run.yaml", "precision: fp8-mixed\nrecipe: {margin: [1]}\n");
  expect_error(fit("--config run.yaml"), 2,
               {"run.yaml:2:", "'recipe' has a setting that is no `key: value`"});
  write("run.yaml", "precision: fp8-mixed\nrecipe: {}\n");
  expect_error(fit("--config run.yaml"), 2, {"run.yaml:2:", "'recipe' must be one value"});
}

TEST_F(Fp8Runs, ASwitchOfARecipeNeedsNoValue) {
  EXPECT_EQ(fit("--precision fp8-mixed --recipe NVFP4BlockScaling,disable_rht --max-steps 1 --model mlp "
                "--output run")
                .status,
            0);
  const Outcome warned =
      fit("--precision fp8-mixed --recipe interval=2 --max-steps 1 --model mlp --output old");
  EXPECT_EQ(warned.status, 0);
  EXPECT_THAT(warned.err, HasSubstr("DelayedScaling: interval 2 has no effect"));
}

TEST_F(Fp8Runs, TheLayersArePrintedOnceWithTheReasons) {
  const Outcome run =
      Program::run("fit --device cpu --model mlp --precision fp8-mixed --max-steps 2 --output run");
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(
      run.err,
      AllOf(HasSubstr("layer    weight       products       why\n"),
            HasSubstr("as the model   it is the first layer; --fp8-first-and-last computes it in FP8, too\n"),
            HasSubstr("float8_e4m3fn\n")));
  EXPECT_THAT(run.err, Not(HasSubstr("warning")));
  EXPECT_THAT(fit("--model mlp --precision fp8-mixed --max-steps 1 --output quiet").err, IsEmpty());
  const Outcome none = fit("--model convnet --precision fp8-mixed --max-steps 1 --output none");
  EXPECT_THAT(none.err, HasSubstr("no layer of mantissa::ConvnetImpl computes in FP8"));
}

TEST_F(Fp8Runs, ARecipeComputesAttentionWhereAModelHasOne) {
  write("text.txt", std::string(4000, 'a') + "b c d\n");
  const std::string arguments = "--data text:text.txt --model gpt-tiny --max-steps 1 --batch-size 2 ";
  const Outcome run =
      Program::run("fit --device cpu --precision fp8-mixed --recipe fp8_dpa=true --output run " + arguments);
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.err, testing::ContainsRegex("blocks.0 +attention +float8_e4m3fn"));
  write("run.yaml", "precision: transformer-engine\nrecipe: {name: Float8CurrentScaling, fp8_dpa: true}\n");
  EXPECT_EQ(fit("--config run.yaml --output te " + arguments).status, 0);
  expect_error(fit("--precision fp8-mixed --recipe fp8_dpa=true --model mlp --output none"), 1,
               {"the recipe has fp8_dpa, and ", "has no attention", "leave fp8_dpa out"});
}

TEST_F(Fp8Runs, TheMonitorWritesColumnsOfLayers) {
  const Outcome run = fit(
      "--model mlp --precision fp8-mixed --max-steps 2 --log-every-n-steps 1 --logger csv,jsonl,tensorboard "
      "--callbacks PrecisionMonitor --precision-every-n-steps 2 --error-every-n-steps 2 --output run");
  ASSERT_EQ(run.status, 0) << run.err;
  for (const char* file : {"run/metrics.csv", "run/metrics.jsonl"})
    EXPECT_THAT(read(folder_ / file),
                AllOf(HasSubstr("quantization/amax/"), HasSubstr("quantization/overflows_total"),
                      HasSubstr("quantization/error/"), HasSubstr("/grad_output")));
}

TEST_F(Fp8Runs, ModesListsThemAsEmulated) {
  const std::string out = run("modes").out;
  const size_t row = out.find("\nfp8-mixed ");
  ASSERT_NE(row, std::string::npos) << out;
  EXPECT_THAT(
      out.substr(row, 400),
      AllOf(HasSubstr(
                "cpu   emulated     FP8 codes are multiplied exactly and summed in float32; a step takes "),
            HasSubstr("cuda  unavailable")));
}

TEST_F(Fp8Runs, F8_31_AKilledRunIsResumedBitForBit) {
  const auto traces = [&](const std::string& name) {
    return read(folder_ / name / "weights.safetensors") + read(folder_ / name / "metrics.csv");
  };
  for (const std::string mode :
       {"fp8-mixed --recipe amax_history_len=6", "transformer-engine --recipe NVFP4BlockScaling"}) {
    const std::string words =
        "--model mlp --max-epochs 8 --accumulate-grad-batches 2 --every-n-train-steps 3 --fp8-first-and-last "
        "true --precision " +
        mode;
    ASSERT_EQ(fit(words + " --output whole").status, 0);
    const Outcome killed =
        run("fit --device cpu --quiet " + words +
            " --output killed & pid=$!; until [ -e killed/metrics.csv ]; do sleep 0.005; done; "
            "sleep 0.15; kill -KILL $pid; wait $pid");
    ASSERT_EQ(killed.status, 137) << "it was too fast";
    const Outcome resumed = run("resume --quiet killed");
    ASSERT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_THAT(resumed.err, IsEmpty());
    EXPECT_TRUE(traces("killed") == traces("whole")) << mode;
    fs::remove_all(folder_ / "whole");
    fs::remove_all(folder_ / "killed");
  }
}

TEST_F(Fp8Runs, ACheckpointLoadsInBf16AndBack) {
  const std::string words = "--model mlp --max-steps 20 --every-n-train-steps 20 --output run --precision ";
  ASSERT_EQ(fit(words + "fp8-mixed").status, 0);
  const Outcome there = run("resume run --quiet --precision bf16-mixed --max-steps 30");
  ASSERT_EQ(there.status, 0) << there.err;
  EXPECT_THAT(there.err, HasSubstr("its fp8 state is dropped"));
  const Outcome back = run("resume run --quiet --precision fp8-mixed --max-steps 40");
  ASSERT_EQ(back.status, 0) << back.err;
  EXPECT_THAT(back.err, HasSubstr("it has no FP8 scales, so these start anew"));
}

TEST_F(Fp8Runs, ValidateUsesTheTrainedScales) {
  const auto loss_of = [](const std::string& text) {
    return nlohmann::json::parse(text)["val_loss"].get<double>();
  };
  for (const std::string mode : {"fp8-mixed --recipe amax_history_len=6", "transformer-engine",
                                 "fp8-mixed --recipe NVFP4BlockScaling"}) {
    SCOPED_TRACE(mode);
    ASSERT_EQ(
        fit("--model mlp --max-steps 40 --fp8-first-and-last true --output run --precision " + mode).status,
        0);
    const double trained = loss_of(read(folder_ / "run/result.json"));
    const Outcome again = run("validate run --quiet --json -");
    EXPECT_EQ(loss_of(again.out), trained);
    EXPECT_THAT(again.err, Not(HasSubstr("warning")));
    fs::remove(folder_ / "run/result.json");
    EXPECT_EQ(loss_of(run("validate run --quiet --json -").out), trained) << "of the newest checkpoint";
    fs::remove_all(folder_ / "run");
  }
}

TEST_F(Fp8Runs, WeightsThatAreStoredInFp8AreResumedValidatedAndRestored) {
  const auto loss_of = [](const std::string& text) {
    return nlohmann::json::parse(text)["val_loss"].get<double>();
  };
  const std::string words =
      "--model mlp --precision transformer-engine --fp8-primary-weights true --recipe amax_history_len=6 "
      "--lr-schedule constant ";
  ASSERT_EQ(fit(words + "--max-steps 40 --output whole").status, 0);
  const Outcome begun = fit(words + "--max-steps 15 --output run");
  ASSERT_EQ(begun.status, 0) << begun.err;
  const Outcome resumed = run("resume run --quiet --max-steps 40");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_THAT(resumed.err, IsEmpty());
  const fs::path weights = folder_ / "run/weights.safetensors";
  EXPECT_EQ(read(weights), read(folder_ / "whole/weights.safetensors"));

  const double trained = loss_of(read(folder_ / "run/result.json"));
  const Outcome validated = run("validate run --quiet --json -");
  EXPECT_EQ(loss_of(validated.out), trained);
  EXPECT_THAT(validated.err, Not(HasSubstr("warning")));
  const Outcome plain = run("validate run --quiet --json - --precision bf16-true");
  EXPECT_NEAR(loss_of(plain.out), trained, 0.1 * trained);
  EXPECT_THAT(plain.err, HasSubstr("in 4 or 8 bits, restored to float32"));

  ASSERT_EQ(run("convert run/weights.safetensors plain.safetensors --dequantize --dtype fp32").status, 0);
  EXPECT_GT(fs::file_size(folder_ / "plain.safetensors"), 3 * fs::file_size(weights));
  const Outcome restored =
      run("validate run --quiet --json - --precision bf16-true --weights plain.safetensors");
  EXPECT_EQ(loss_of(restored.out), loss_of(plain.out));

  const Outcome there = run("resume run --quiet --precision bf16-true --max-steps 45");
  EXPECT_EQ(there.status, 0) << there.err;
  EXPECT_THAT(there.err, HasSubstr("3 weights are restored from 4 or 8 bits"));
  expect_error(fit("--precision fp8-mixed --fp8-primary-weights true --output none"), 2,
               {"--fp8-primary-weights true", "transformer-engine"});
}

TEST_F(Fp8Runs, WeightsThatAreStoredInFp8FitEveryRecipeAndMonitor) {
  const std::string words =
      "--model mlp --precision transformer-engine --fp8-primary-weights true --lr-schedule constant "
      "--max-steps 30 ";
  const auto loss = [&](const std::string& text) {
    return nlohmann::json::parse(text)["val_loss"].get<double>();
  };
  for (const std::string recipe : {"Float8CurrentScaling", "Float8BlockScaling"}) {
    ASSERT_EQ(fit(words + "--recipe DelayedScaling,amax_history_len=8 --output run").status, 0);
    const double before = loss(read(folder_ / "run/result.json"));
    const Outcome resumed = run("resume run --quiet --max-steps 32 --json - --recipe " + recipe);
    ASSERT_EQ(resumed.status, 0) << recipe << ": " << resumed.err;
    EXPECT_THAT(resumed.err, HasSubstr("warning"));
    EXPECT_NEAR(loss(resumed.out), before, 0.2 * before) << recipe;
    fs::remove_all(folder_ / "run");
  }
  const Outcome watched = fit(words + "--fallback bf16-mixed --output watched");
  EXPECT_EQ(watched.status, 0) << watched.err;
}

TEST_F(Fp8Runs, ResumesInAnotherRecipe) {
  ASSERT_EQ(
      fit("--model mlp --precision fp8-mixed --recipe amax_history_len=8 --max-steps 20 --output run").status,
      0);
  const Outcome longer = run("resume run --quiet --max-steps 22 --recipe amax_history_len=32");
  ASSERT_EQ(longer.status, 0) << longer.err;
  EXPECT_THAT(longer.err, HasSubstr("its FP8 histories of 8 steps are padded to 32"));
  EXPECT_THAT(read(folder_ / "run/config.yaml"), HasSubstr("amax_history_len=32"));
  const Outcome other = run("resume run --quiet --max-steps 24 --recipe NVFP4BlockScaling");
  ASSERT_EQ(other.status, 0) << other.err;
  EXPECT_THAT(read(folder_ / "run/config.yaml"), HasSubstr("recipe: NVFP4BlockScaling"));
  expect_error(run("resume run --quiet --max-steps 26 --recipe DelayedScalin"), 2,
               {"did you mean 'DelayedScaling'?"});
  expect_error(run("resume run --quiet --max-steps 26 --precision bf16-mixed --recipe MXFP8BlockScaling"), 2,
               {"'bf16-mixed' with --recipe MXFP8BlockScaling"});
  ASSERT_EQ(run("resume run --quiet --max-steps 26 --precision bf16-mixed").status, 0);
  const Outcome back =
      run("resume run --quiet --max-steps 28 --precision fp8-mixed --recipe MXFP8BlockScaling");
  ASSERT_EQ(back.status, 0) << back.err;
  EXPECT_THAT(read(folder_ / "run/config.yaml"), HasSubstr("recipe: MXFP8BlockScaling"));
}

TEST_F(Fp8Runs, AnotherModeInFp8KeepsTheRecipe) {
  ASSERT_EQ(
      fit("--model mlp --precision fp8-mixed --recipe Float8BlockScaling --max-steps 4 --output run").status,
      0);
  const Outcome resumed = run("resume run --quiet --precision transformer-engine --max-steps 6");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_THAT(read(folder_ / "run/config.yaml"), HasSubstr("recipe: Float8BlockScaling"));
  ASSERT_EQ(run("resume run --quiet --precision bf16-mixed --max-steps 8").status, 0);
  EXPECT_THAT(read(folder_ / "run/config.yaml"), Not(HasSubstr("recipe: Float8BlockScaling")));
}

TEST_F(Fp8Runs, WithoutTrainedScalesValidateSaysSo) {
  const std::string words =
      "--model mlp --max-steps 40 --fp8-first-and-last true --precision fp8-mixed --recipe "
      "amax_history_len=6 ";
  ASSERT_EQ(fit(words + "--output run").status, 0);
  ASSERT_EQ(fit(words + "--no-enable-checkpointing --output bare").status, 0);
  const auto anew = HasSubstr("it has no FP8 scales, so these start anew");
  const Outcome bare = run("validate bare --quiet --json -");
  EXPECT_THAT(bare.err, AllOf(HasSubstr("evaluating 'bare/weights.safetensors' in fp8-mixed"), anew));
  EXPECT_NE(nlohmann::json::parse(bare.out)["val_loss"],
            nlohmann::json::parse(read(folder_ / "run/result.json"))["val_loss"])
      << "so the scales matter";
  EXPECT_THAT(run("test run --quiet --weights run/weights.safetensors").err, anew) << "a file of its own";
  EXPECT_THAT(run("predict run --quiet --precision bf16-mixed --output none.csv").err, IsEmpty());
  EXPECT_THAT(run("predict run --quiet --output some.csv").err, IsEmpty());
  for (const auto& entry : fs::directory_iterator(folder_ / "run/checkpoints"))
    fs::resize_file(entry.path() / "state.safetensors", 10);
  const Outcome damaged = run("validate run --quiet");
  EXPECT_EQ(damaged.status, 0);
  EXPECT_THAT(damaged.err, AllOf(HasSubstr("the state of the mode cannot be read"), anew));
}

TEST_F(Fp8Runs, ReachTheAccuracyOfBf16) {
  const auto accuracy = [&](const std::string& words, const std::string& name) {
    EXPECT_EQ(fit("--model mlp --max-epochs 6 --output " + name + " --precision " + words).status, 0);
    return nlohmann::json::parse(read(folder_ / name / "result.json"))["val_accuracy"].get<double>();
  };
  const double bf16 = accuracy("bf16-mixed", "bf16"),
               fp8 = accuracy("fp8-mixed --fp8-first-and-last true", "fp8");
  EXPECT_GT(bf16, 0.9);
  EXPECT_NEAR(fp8, bf16, 0.03);
}

}  // namespace
}  // namespace mantissa::cli::fp8_modes_test
