// Tests of shell completion, the manual page, help and modes.
#include <map>

#include "cli/test_support_internal.h"

namespace mantissa::cli::completion_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;

/// Returns every word that begins with a dash in the options of `--help`.
std::set<std::string> flags_in_help(const std::string& help) {
  std::set<std::string> flags;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  -")) continue;
    std::istringstream names(line.substr(2, line.find(' ', 2) - 2));
    for (std::string name; std::getline(names, name, ',');) flags.insert(name);
  }
  return flags;
}

const std::vector<std::string> kCommands{"fit",   "resume",  "validate", "test",       "predict", "merge",
                                         "modes", "inspect", "convert",  "completion", "man"};

TEST_F(Program, CompletionAndManualNameEveryOption) {
  std::map<std::string, std::string> texts;
  for (const char* what : {"completion bash", "completion zsh", "completion fish", "man"}) {
    const Outcome outcome = run(what);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    texts[what] = outcome.out;
  }
  const auto after = [](const std::string& text, const std::string& start) {
    EXPECT_THAT(text, HasSubstr(start));
    return text.substr(std::min(text.find(start), text.size()));
  };
  size_t flags = 0;
  for (const std::string& command : kCommands) {
    const std::string in_bash = after(texts["completion bash"], "    " + command + ")\n");
    const std::string in_zsh = after(texts["completion zsh"], "        " + command + ")\n");
    const std::string in_man = after(texts["man"], ".SS mantissa " + command + "\n");
    const std::string bash_options = in_bash.substr(0, in_bash.find(";;")),
                      zsh_options = in_zsh.substr(0, in_zsh.find(";;")),
                      man_options = in_man.substr(0, in_man.find(".SS", 3));
    for (const std::string& flag : flags_in_help(run(command + " --help").out)) {
      ++flags;
      EXPECT_THAT(bash_options, testing::ContainsRegex("[' ]" + flag + "[' ]")) << command;
      EXPECT_THAT(zsh_options, HasSubstr(flag + "[")) << command;
      EXPECT_THAT(texts["completion fish"],
                  testing::ContainsRegex(
                      "subcommand_from " + command + "' .*" +
                      (flag.starts_with("--") ? "-l " + flag.substr(2) : "-s " + flag.substr(1)) + " "));
      std::string dashes;
      for (const char c : flag) dashes += c == '-' ? "\\-" : std::string(1, c);
      EXPECT_THAT(man_options, HasSubstr("\\fB" + dashes + "\\fR")) << command;
    }
  }
  EXPECT_GT(flags, 70U);
  expect_error(run("completion csh"), 2, {"'csh' is not a shell", "bash, zsh, fish"});
  expect_error(run("completion"), 2, {"shell is required"});
}

TEST_F(Program, BashCompletes) {
  ASSERT_EQ(run("completion bash >completion.bash").status, 0);
  write("words.sh",
        "source completion.bash\nCOMP_WORDS=(mantissa \"$@\")\nCOMP_CWORD=$#\n_mantissa\n"
        "printf '%s ' \"${COMPREPLY[@]}\"\n");
  const auto complete = [&](const std::string& words) {
    const Outcome outcome = run("--version >/dev/null; bash words.sh " + words);
    EXPECT_EQ(outcome.err, "");
    return outcome.out;
  };
  EXPECT_EQ(complete("i"), "inspect ");
  EXPECT_EQ(
      complete("''"),
      "fit resume validate test predict generate tokenize pack merge modes inspect convert completion man ");
  EXPECT_EQ(complete("--v"), "--version ");
  EXPECT_EQ(complete("inspect --no"), "--no-values ");
  EXPECT_EQ(complete("inspect --no-values --so"), "--sort ");
  EXPECT_EQ(complete("inspect --sort ''"), "name bytes ");
  EXPECT_EQ(complete("inspect fit --no"), "--no-values ");
  EXPECT_EQ(complete("fit --precision bf"), "bf16-mixed bf16-true ");
  EXPECT_EQ(complete("fit --precision a"), "all ");
  EXPECT_EQ(complete("resume --precision a"), " ") << "a run is resumed in one mode";
  EXPECT_EQ(complete("fit --model r"), "resnet-tiny resnet18 resnet50 ");
  EXPECT_EQ(complete("fit --lr-schedule ''"), "constant cosine ");
  EXPECT_EQ(complete("fit --logger ''"), "csv tensorboard jsonl none ");
  EXPECT_EQ(complete("fit --monitor val"), "val_loss val_accuracy ");
  EXPECT_EQ(complete("fit --amp-level ''"), "O0 O1 O2 O3 ");
  EXPECT_EQ(complete("fit --transactional ''"), " ") << "a switch takes no value";
  EXPECT_EQ(complete("fit --no-tra"), "--no-transactional --no-trace-nonfinite ");
  EXPECT_EQ(complete("fit --master-weights ''"), "auto true false ");
  EXPECT_EQ(complete("validate --float32-matmul-precision h"), "highest high ");
  EXPECT_EQ(complete("convert --dtype b"), "bf16 ");
  EXPECT_EQ(complete("fit --max-e"), "--max-epochs ");
  EXPECT_EQ(complete("completion z"), "zsh ");
  EXPECT_EQ(complete("fit --config f"), " ") << "names of files are bash's own default";
  EXPECT_EQ(complete("unknown --"), " ");
}

TEST_F(Program, ScriptsAndManualAreWellFormed) {
  struct Tool {
    const char* name;
    const char* check;
  };
  std::string missing;
  for (const auto& [name, check] :
       {Tool{"groff", "man | groff -man -Tutf8 -ww -z"}, Tool{"zsh", "completion zsh >z; zsh -n z"},
        Tool{"fish", "completion fish >f; fish -n f"},
        Tool{"shellcheck", "completion bash >b; shellcheck -s bash b"}}) {
    if (std::system((std::string("command -v ") + name + " >/dev/null").c_str()) != 0) {
      missing += std::string(" ") + name;
      continue;
    }
    const Outcome outcome = run(check);
    EXPECT_EQ(outcome.status, 0) << name;
    EXPECT_EQ(outcome.out + outcome.err, "") << name;
  }
  if (!missing.empty()) GTEST_SKIP() << "not looked at, for want of:" << missing;
}

TEST_F(Program, HelpVersionAndModes) {
  for (const char* arguments : {"--help", "fit --help", "modes --help", "inspect --help", "convert --help"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_THAT(outcome.out, HasSubstr("--help"));
  }
  for (const char* arguments : {"--version", "fit --version", "modes --version", "convert --version"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_THAT(outcome.out, MatchesRegex("mantissa [0-9.]+\n"));
  }
  EXPECT_THAT(
      run("fit --help").out,
      AllOf(HasSubstr("[bf16-mixed]"), HasSubstr("samples per batch [32; text: 16]"),
            HasSubstr("[convnet; text: gpt-tiny; csv: mlp]"), HasSubstr("[0; cifar10, cifar100: 4]")));
  const Outcome modes = run("modes");
  EXPECT_EQ(modes.status, 0);
  EXPECT_THAT(modes.out, HasSubstr("\n16-bit operations on the CPU: "));
  // Without a GPU every mode is unavailable for the same reason, which is printed once.
  const std::string because = "no GPU can be used: ";
  if (const size_t at = modes.out.find(because); at == std::string::npos) {
    EXPECT_THAT(modes.out, testing::Not(HasSubstr("unavailable")));
  } else {
    const size_t begin = at + because.size();
    EXPECT_EQ(modes.out.find(modes.out.substr(begin, modes.out.find('\n', begin) - begin)), begin);
  }
  for (const char* mode : {"32-true", "64-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"})
    EXPECT_THAT(modes.out, HasSubstr(mode));
}

TEST_F(Program, HelpAndManualComeInGroups) {
  const std::string help = run("fit --help").out, manual = run("man").out,
                    of_fit =
                        manual.substr(manual.find(".SS mantissa fit"), manual.find(".SS mantissa resume"));
  size_t in_help = 0, in_manual = 0;
  for (const auto& [group, option] :
       std::vector<std::pair<std::string, std::string>>{{"Data", "batch-size"},
                                                        {"Model", "device"},
                                                        {"Precision", "hysteresis-steps"},
                                                        {"Optimizer", "weight-decay"},
                                                        {"Schedule", "warmup-steps"},
                                                        {"Limits", "patience"},
                                                        {"Logging", "log-every-n-steps"},
                                                        {"Checkpoints", "monitor"}}) {
    const auto comes_after = [](const std::string& text, const std::string& what, size_t& place) {
      const size_t found = text.find(what, place);
      ASSERT_NE(found, std::string::npos) << what;
      place = found;
    };
    comes_after(help, "\n" + group + ":\n", in_help);
    comes_after(help, "\n  --" + option + " ", in_help);
    comes_after(of_fit, "\n.B " + group + "\n", in_manual);
  }
  for (const char* command : {"resume", "predict"})
    EXPECT_THAT(run(std::string(command) + " --help").out,
                AllOf(HasSubstr("\nModel:\n"), HasSubstr("\nPrecision:\n")));
}

TEST_F(Program, ModesNamesTheTierOfTheCpuKernels) {
  setenv("MANTISSA_CPU_KERNELS", "1", 1);
  setenv("MANTISSA_MAX_ISA", "generic", 1);
  // `modes` itself measures every mode, which takes half a minute in this tier.
  EXPECT_THAT(run("modes --kernels").out, HasSubstr("up to tier generic, capped by MANTISSA_MAX_ISA"));
  setenv("MANTISSA_CPU_KERNELS", "0", 1);
  EXPECT_THAT(run("modes --kernels").out, HasSubstr("libtorch's own, by MANTISSA_CPU_KERNELS=0"));
  setenv("MANTISSA_CPU_KERNELS", "1", 1);
  setenv("MANTISSA_MAX_ISA", "avx3", 1);
  EXPECT_THAT(run("modes").err, HasSubstr("MANTISSA_MAX_ISA=avx3: no such tier"));
  unsetenv("MANTISSA_CPU_KERNELS");
  unsetenv("MANTISSA_MAX_ISA");
}

}  // namespace
}  // namespace mantissa::cli::completion_test
