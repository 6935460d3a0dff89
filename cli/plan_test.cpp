// The memory plan is printed before a run, in every mode, and changes nothing about the run.
#include <filesystem>

#include <nlohmann/json.hpp>

#include "cli/modes_test_support_internal.h"
#include "cli/test_support_internal.h"
#include "mantissa/core/formats.h"

namespace mantissa::cli::plan_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Plan : public Program {
 protected:
  /// Plans a run without steps; returns what --json wrote.
  json plan(const std::string& arguments) const {
    const Outcome outcome = fit("--plan --max-steps 0 --json result.json " + arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json::parse(read(folder_ / "result.json"));
  }
};

std::vector<std::string> modes_of(const json& result) {
  std::vector<std::string> names;
  for (const json& row : result["memory_plan"]) names.push_back(row["precision"]);
  return names;
}

/// Returns the rows of a plan whose run is in the mode `first`.
std::vector<std::string> rows_after(const std::string& first) {
  std::vector<std::string> rows = planned_modes();
  std::erase(rows, first);
  rows.insert(rows.begin(), first);
  return rows;
}

TEST_F(Plan, TheRunComesFirstAndEveryOtherModeBesideIt) {
  const Outcome outcome =
      fit("--model convnet --optimizer sgd --precision bf16-mixed --plan --max-steps 0 --json result.json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Not(HasSubstr("warning")));
  const json result = json::parse(read(folder_ / "result.json"));
  ASSERT_EQ(modes_of(result), rows_after("bf16-mixed"));
  const int64_t parameters = result["parameters"];
  for (const json& row : result["memory_plan"]) {
    const std::string mode = row["precision"];
    const PrecisionTraits& traits = find_mode(mode).traits;
    if (traits.frozen_weights) {
      EXPECT_LT(row["weights"], parameters * 4) << mode;
      EXPECT_LT(row["gradients"], row["weights"]) << mode << ": the rest trains";
      EXPECT_EQ(row["optimizer_states"], row["gradients"]) << mode << ": momentum";
      continue;
    }
    const int64_t bytes = info(traits.weights.value_or(Format::kFloat32)).bits / 8;
    EXPECT_EQ(row["weights"], parameters * bytes) << mode;
    EXPECT_EQ(row["gradients"], parameters * bytes) << mode;
    EXPECT_EQ(row["optimizer_states"], parameters * bytes) << mode << ": momentum";
    EXPECT_EQ(row["masters"], 0) << mode;
    EXPECT_GE(row["peak"], row["total"]) << mode;
  }
  const auto activations = [&](const std::string& mode) {
    for (const json& row : result["memory_plan"])
      if (row["precision"] == mode) return row["activations"].get<double>();
    return -1.0;
  };
  // The ratios are not exactly 2 and 1/2: the indices of max pooling are int64 in every mode, and the memory
  // that kernels keep depends on the CPU.
  EXPECT_GT(activations("64-true"), activations("32-true"));
  EXPECT_LT(activations("bf16-true"), activations("32-true"));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("memory plan in MiB: convnet, batches of 32, sgd\n"),
                                 HasSubstr("\nbf16-mixed *"), HasSubstr("\n32-true "),
                                 HasSubstr("memory of bf16-mixed: planned "), HasSubstr("measured peak "),
                                 HasSubstr("of it before the model was made\n")));
}

TEST_F(Plan, ModulesWith32BitStatesTakeTheirBytes) {
  const auto states = [&](const std::string& options) {
    const json result = plan("--model mlp --optimizer adamw8bit " + options);
    return result["memory_plan"][0]["optimizer_states"].get<int64_t>();
  };
  const int64_t hidden = 128 * 128, blocks = hidden / 256;
  const int64_t saved = 2 * hidden * 4 - 2 * (hidden + blocks * 4);
  const int64_t in_8_bits = states("");
  EXPECT_EQ(states("--optim-32bit-modules layers.1.weight") - in_8_bits, saved);
  EXPECT_EQ(states("--optim-32bit-modules layers.1"), states("--optim-32bit-modules layers.1.weight"));
  const Outcome wrong =
      fit("--model mlp --max-steps 1 --optimizer adamw8bit --optim-32bit-modules layer.1 --output wrong");
  EXPECT_EQ(wrong.status, 1);
  EXPECT_THAT(wrong.err, testing::HasSubstr(
                             "no module or weight 'layer.1'; did you mean 'layers.1'? (mantissa inspect"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "wrong"));
}

TEST_F(Plan, ChangesNothingAboutTheRun) {
  for (const std::string mode : {"32-true", "16-mixed"}) {
    const std::string words = "--model convnet --max-steps 3 --precision " + mode + " --output " + mode;
    ASSERT_EQ(fit(words + "-alone").status, 0);
    ASSERT_EQ(fit(words + "-planned --plan").status, 0);
    for (const char* file : {"metrics.csv", "weights.safetensors"})
      EXPECT_TRUE(read(folder_ / (mode + "-alone") / file) == read(folder_ / (mode + "-planned") / file))
          << mode << " " << file;
  }
}

TEST_F(Plan, OtherModesHaveTheirOwnOptions) {
  const json result = plan("--model mlp --optimizer sgd --precision bf16-true --master-weights true");
  for (const json& row : result["memory_plan"]) {
    const bool own = row["precision"] == "bf16-true";
    EXPECT_EQ(row["masters"], own ? 2 * row["weights"].get<int64_t>() : 0) << row;
  }
  EXPECT_EQ(modes_of(plan("--model mlp --optimizer sgd --precision O2 --output o2")).front(), "O2");
}

TEST_F(Plan, ModesThatTheOptionsDoNotFitAreLeftOutWithTheReason) {
  const Outcome outcome =
      fit("--model mlp --precision 32-true --optimizer adamw --plan --max-steps 0 --json result.json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("memory plan: 16-true is left out: --optimizer adamw cannot keep its state in fp16"));
  std::vector<std::string> rows = rows_after("32-true");
  std::erase_if(rows, has_fp16_weights);
  EXPECT_EQ(modes_of(json::parse(read(folder_ / "result.json"))), rows);
}

TEST_F(Plan, OfAllModesIsMadeOnce) {
  const Outcome outcome = fit("--model mlp --optimizer sgd --precision all --plan --max-steps 0 --json -");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json results = json::parse(outcome.out);
  ASSERT_EQ(results.size(), trained_modes().size());
  for (const json& result : results) {
    EXPECT_EQ(result["memory_plan"], results[0]["memory_plan"]);
    EXPECT_THAT(outcome.err, HasSubstr("memory of " + result["precision"].get<std::string>() + ": planned "));
  }
  EXPECT_EQ(results[0]["memory_plan"].size(), planned_modes().size())
      << "those that train no layer are planned only";
}

TEST_F(Plan, OfARunThatIsResumed) {
  ASSERT_EQ(fit("--model mlp --max-epochs 1 --limit-train-batches 2 --output run").status, 0);
  const Outcome resumed = run("resume run --quiet --plan --max-epochs 2 --json result.json");
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_THAT(resumed.out,
              AllOf(HasSubstr("memory plan in MiB: mlp"), HasSubstr("memory of bf16-mixed: planned ")));
  EXPECT_THAT(modes_of(json::parse(read(folder_ / "result.json"))), testing::Contains("32-true"));
  EXPECT_EQ(json::parse(read(folder_ / "result.json"))["epochs"], 2);
}

TEST_F(Plan, CtrlCEndsItWithStatus130AndNothingLeft) {
  // A large data set keeps each mode's process busy for a while, so the signal arrives while they plan.
  write("text.txt", std::string(4 << 20, 'a'));
  const Outcome outcome = run(
      "fit --device cpu --quiet --data text:text.txt --model gpt-tiny --batch-size 64 --plan --output run & "
      "pid=$!; sleep 1; kill -INT $pid; wait $pid");
  EXPECT_EQ(outcome.status, 130);
  EXPECT_THAT(outcome.out, Not(HasSubstr("memory plan")));
  EXPECT_THAT(outcome.left, testing::IsEmpty());
}

TEST_F(Plan, FailsAsTheRunWould) {
  expect_error(fit("--plan --data text:none.txt --model gpt-tiny"), 1, {"none.txt"});
  expect_error(run("fit --quiet --plan --device cuda:99"), 2, {"cuda:99"});
}

TEST_F(Plan, IsNotInAResultThatDidNotAskForIt) {
  ASSERT_EQ(fit("--max-steps 0 --json result.json").status, 0);
  const json result = json::parse(read(folder_ / "result.json"));
  EXPECT_FALSE(result.contains("memory_plan"));
  EXPECT_FALSE(result.contains("memory_before_bytes"));
}

}  // namespace
}  // namespace mantissa::cli::plan_test
