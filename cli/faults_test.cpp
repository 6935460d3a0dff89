// Tests of folders that others change or remove, and of limits of the system.
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "cli/test_support_internal.h"

namespace mantissa::cli::faults_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kFit = "--model mlp --lr-schedule constant ";

class Faults : public Program {
 protected:
  /// Runs several commands in the test's folder; `mantissa` is a variable with the program's path.
  Outcome shell(const std::string& commands) const {
    return run("--version >/dev/null; mantissa=" MANTISSA_PROGRAM "; " + commands);
  }
};

TEST_F(Faults, ALinkInTheFolderIsNotWrittenThrough) {
  write("precious", "precious");
  fs::create_directory(folder_ / "run");
  fs::create_symlink("../precious", folder_ / "run/.lock");
  expect_error(fit(kFit + "--max-epochs 1 --output run"), 1, {"run/.lock", "remove the symbolic link"});
  fs::remove(folder_ / "run/.lock");
  ASSERT_EQ(fit(kFit + "--max-epochs 1 --output run").status, 0);
  for (const char* name : {".lock", "checkpoints/.lock", "metrics.csv"}) {
    const fs::path file = folder_ / "run" / name, kept = folder_ / "kept";
    if (fs::exists(file)) fs::rename(file, kept);
    fs::create_symlink(folder_ / "precious", file);
    expect_error(run("resume run --quiet --max-epochs 2"), 1, {name, "remove the symbolic link"});
    fs::remove(file);
    if (fs::exists(kept)) fs::rename(kept, file);
  }
  // A file that is written anew replaces only the link.
  fs::copy_file(folder_ / "run/config.yaml", folder_ / "template.yaml");
  const std::string config = read(folder_ / "template.yaml");
  for (const char* name : {"config.yaml", "weights.safetensors"}) {
    fs::remove(folder_ / "run" / name);
    fs::create_symlink(std::string(name) == "config.yaml" ? "../template.yaml" : "../precious",
                       folder_ / "run" / name);
  }
  const Outcome resumed = run("resume run --quiet --max-epochs 2");
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  for (const char* name : {"config.yaml", "weights.safetensors"})
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder_ / "run" / name))) << name;
  EXPECT_EQ(read(folder_ / "template.yaml"), config);
  EXPECT_EQ(read(folder_ / "precious"), "precious");
}

TEST_F(Faults, APlaceThatCannotBeLookedAtIsNamed) {
  fs::create_symlink("loop", folder_ / "loop");
  for (const char* const command : {"inspect loop", "resume loop", "convert loop out.safetensors"})
    expect_error(run(command), 1, {"'loop", "symbolic links"});
}

TEST_F(Faults, ARemovedCurrentFolderIsReported) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer begins before the program can look";
#endif
  const Outcome removed =
      shell("mkdir gone; cd gone; rmdir ../gone; $mantissa fit --max-epochs 1; echo status $?");
  EXPECT_THAT(removed.out, HasSubstr("status 2\n"));
  EXPECT_THAT(removed.err, HasSubstr("mantissa: error: the current folder was removed"));
}

TEST_F(Faults, OddResultsAreNoResult) {
  ASSERT_EQ(fit(kFit + "--max-epochs 1 --output run").status, 0);
  write("run/result.json", R"({"interrupted_by": 0, "epochs": "many"})");
  expect_error(run("resume run"), 1, {"is complete"});
  fs::remove(folder_ / "run/result.json");
  // Opening it would wait for a writer.
  ASSERT_EQ(::mkfifo((folder_ / "run/result.json").c_str(), 0600), 0);
  EXPECT_EQ(shell("timeout 100 $mantissa resume run --quiet --max-epochs 2").status, 0);
  write("run/result.json", R"({"interrupted_by": "never"})");
  EXPECT_EQ(run("resume run --quiet --max-epochs 3").status, 0);
}

TEST_F(Faults, WhatAKilledRunWasWritingIsSweptUp) {
  ASSERT_EQ(fit(kFit + "--max-epochs 1 --output run").status, 0);
  const std::string dead = shell("sh -c 'printf $$'").out;
  const auto left = [&](const std::string& name) { return "run/." + name + ".tmp-" + dead + "-3"; };
  for (const char* name : {"metrics.csv", "config.yaml", "weights.safetensors", "others.csv"})
    write(left(name), "half");
  ASSERT_EQ(run("resume run --quiet --max-epochs 2").status, 0);
  for (const char* name : {"metrics.csv", "config.yaml", "weights.safetensors"})
    EXPECT_FALSE(fs::exists(folder_ / left(name))) << name;
  EXPECT_TRUE(fs::exists(folder_ / left("others.csv")));
  // A run that was killed before it had a configuration starts again, in the same folder.
  write("begun/.config.yaml.tmp-" + dead + "-0", "half");
  ASSERT_EQ(fit(kFit + "--max-steps 1 --output begun").status, 0);
  EXPECT_FALSE(fs::exists(folder_ / ("begun/.config.yaml.tmp-" + dead + "-0")));
}

TEST_F(Faults, ALostConfigurationIsWrittenAgain) {
  const Outcome ended =
      shell("$mantissa fit --device cpu --quiet " + kFit +
            "--max-time 00:00:00:01 --max-epochs -1 --lr-schedule constant --output run & pid=$!; "
            "until grep -q ^1, run/metrics.csv 2>/dev/null; do sleep 0.01; done; "
            "rm run/config.yaml run/metrics.csv; wait $pid; echo status $?");
  EXPECT_THAT(ended.out, HasSubstr("status 0\n"));
  EXPECT_THAT(ended.err, AllOf(HasSubstr("run/config.yaml was removed during the run and is written again"),
                               HasSubstr("the csv logger failed")));
  EXPECT_EQ(run("validate run --quiet --json -").status, 0);
}

TEST_F(Faults, WhoTrainsInAFolderIsReported) {
  const Outcome both = shell("$mantissa fit --device cpu --quiet " + kFit +
                             "--max-epochs 1000000 --output run & pid=$!; "
                             "until [ -e run/metrics.csv ]; do sleep 0.01; done; "
                             "$mantissa fit --device cpu --quiet " +
                             kFit +
                             "--max-steps 1 --output run; echo second $?; "
                             "kill $pid; wait $pid");
  EXPECT_THAT(both.out, HasSubstr("second 1\n"));
  EXPECT_THAT(both.err, AllOf(HasSubstr("is in use by process"), Not(HasSubstr("or remove it"))));
}

TEST_F(Faults, ALostFolderEndsTheRunAndLosesNothing) {
  const struct {
    std::string lose, place;
  } cases[] = {
      {"mv run gone && rm -rf gone", "run"},
      {"mv run archive", "run"},
      // The process is stopped meanwhile, because it might otherwise make the folder between the two
      // commands.
      {"kill -STOP $pid && sleep 0.1 && mv run archive && mkdir run && kill -CONT $pid", "run-rescued-1"}};
  for (const auto& [lose, place] : cases) {
    const Outcome ended = shell("$mantissa fit --device cpu --quiet " + kFit +
                                "--max-epochs 1000000 --output run & pid=$!; "
                                "until grep -q ^1, run/metrics.csv 2>/dev/null; do sleep 0.01; done; " +
                                lose + "; wait $pid; echo status $?");
    EXPECT_THAT(ended.out, HasSubstr("status 1\n")) << lose;
    EXPECT_THAT(ended.err,
                AllOf(HasSubstr("was removed, moved or replaced during the run"),
                      HasSubstr("resume from '" + (folder_ / place / "checkpoints/epoch=").string()),
                      HasSubstr("the run's files are in " + (folder_ / place).string() + " now")))
        << lose;
    if (place != "run") {
      EXPECT_TRUE(fs::is_empty(folder_ / "run"));
    }
    const Outcome resumed = run("resume --quiet --max-time 00:00:00:01 " + place);
    EXPECT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_THAT(resumed.err, Not(HasSubstr("starts again"))) << lose;
    EXPECT_TRUE(fs::exists(folder_ / place / "weights.safetensors"));
    for (const char* folder : {"run", "archive", "run-rescued-1"}) fs::remove_all(folder_ / folder);
  }
}

TEST_F(Faults, ALostFolderWithoutCheckpointsCostsNoWeightsEither) {
  const Outcome ended = shell("$mantissa fit --device cpu --quiet " + kFit +
                              "--no-enable-checkpointing --max-epochs 1000000 --output run & pid=$!; "
                              "until grep -q ^1, run/metrics.csv 2>/dev/null; do sleep 0.01; done; "
                              "mv run archive; wait $pid; echo status $?");
  EXPECT_THAT(ended.out, HasSubstr("status 1\n"));
  EXPECT_THAT(ended.err, AllOf(HasSubstr("was removed, moved or replaced"),
                               HasSubstr("the weights as they were at the error are in")));
  EXPECT_EQ(run("validate run --quiet --json -").status, 0);
}

TEST_F(Faults, AFileThatMayNotGrowIsAnError) {
  // In units of 512 or 1024 bytes: only the weights do not fit.
  const Outcome outcome = shell("(ulimit -f 40; $mantissa fit --device cpu --quiet " + kFit +
                                "--max-epochs 2 --output run); echo status $?");
  EXPECT_THAT(outcome.out, HasSubstr("status 1\n")) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("mantissa: error: "), HasSubstr("writing failed: File too large"),
                                 HasSubstr("(ulimit -f)")));
}

TEST_F(Faults, TooLittleMemoryIsReportedWithItsCure) {
  int reported = 0, reported_by_trainer = 0;
  bool is_enough = false;
  // From a limit below which the program cannot be loaded to one in which the whole run fits.
  for (int64_t mib = 256; mib <= 16'384 && !is_enough; mib += mib / 16) {
    const std::string limit =
        "(export OMP_NUM_THREADS=1; ulimit -c 0; ulimit -v " + std::to_string(mib * 1024) + "; $mantissa ";
    const Outcome loaded = shell(limit + "--version >/dev/null); echo status $?");
    EXPECT_THAT(loaded.err, Not(HasSubstr("terminate called"))) << mib;
    if (loaded.out != "status 0\n") continue;
    const Outcome outcome =
        shell(limit +
              "fit --device cpu --quiet --threads 1 --model resnet-tiny --batch-size 1437 "
              "--max-steps 1 --output run); echo status $?");
    is_enough = outcome.out.ends_with("status 0\n");
    if (is_enough) break;
    EXPECT_THAT(outcome.err, Not(HasSubstr("terminate called"))) << mib;
    fs::remove_all(folder_ / "run");
    // A library that does not check its allocations crashes, which we cannot prevent.
    if (outcome.out == "status 139\n") continue;
    EXPECT_THAT(outcome.out, HasSubstr("status 1\n")) << mib << " MiB: " << outcome.err;
    const size_t begin = outcome.err.rfind("mantissa: error: ");
    const std::string last = outcome.err.substr(std::min(begin, outcome.err.size()));
    EXPECT_THAT(last, testing::MatchesRegex("mantissa: error: [^\n]*memory[^\n]*--batch-size[^\n]*\n"))
        << mib;
    reported += last.find("--model resnet-tiny, --batch-size 1437") != std::string::npos ? 1 : 0;
    reported_by_trainer +=
        last.find("the run in bf16-mixed on cpu was at batch size 1437; the machine has ") !=
                std::string::npos
            ? 1
            : 0;
  }
  // A sanitizer reserves more memory than any limit allows.
  if (!is_enough && reported == 0) GTEST_SKIP() << "the program cannot be loaded under a limit here";
  EXPECT_TRUE(is_enough);
  EXPECT_GT(reported, 0);
  EXPECT_GT(reported_by_trainer, 0);
}

}  // namespace
}  // namespace mantissa::cli::faults_test
