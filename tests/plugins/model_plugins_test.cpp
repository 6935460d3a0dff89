// Models of plug-ins: by make_model(), and on the command line.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <sys/wait.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/models/plugin.h"
#include "mantissa/models/registry.h"

namespace mantissa::model_plugins_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string plugin(const std::string& name) {
  return std::string("lib:") + PLUGINS + "/model_" + name + ".so";
}

const ModelInput kImages{.height = 4, .width = 3, .classes = 5};

std::string refusal(const std::string& model) {
  return error_of<c10::ValueError>([&] { make_model(model, kImages); });
}

TEST(ModelPlugins, AModelIsMadeForTheData) {
  const auto model = make_model(plugin("images"), kImages);
  EXPECT_EQ(model->forward(at::rand({2, 1, 4, 3})).sizes(), (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(model->named_parameters().keys(),
            (std::vector<std::string>{"first.weight", "first.bias", "second.weight", "second.bias"}));
  EXPECT_EQ(find_model(plugin("images")).summary, "two layers");
  EXPECT_EQ(find_model(plugin("tokens")).input, InputKind::kTokens);
}

TEST(ModelPlugins, ItsKindOfInputIsChecked) {
  EXPECT_THAT(refusal(plugin("tokens")),
              AllOf(HasSubstr("model_tokens.so' reads tokens"), HasSubstr("images")));
}

TEST(ModelPlugins, LibrariesOfAnotherVersionAreRefused) {
  EXPECT_THAT(refusal(plugin("other_interface")),
              AllOf(HasSubstr("was built for version 77 of the interface"), HasSubstr("build it with this")));
  EXPECT_THAT(refusal(plugin("other_torch")),
              HasSubstr("was built with libtorch 1.0.0, and this program with "));
  EXPECT_THAT(refusal(plugin("other_compiler")), HasSubstr("has version 1 of the compiler's ABI"));
}

TEST(ModelPlugins, WhatIsNoPluginIsNamed) {
  EXPECT_THAT(refusal("lib:"), HasSubstr("there is no such file"));
  EXPECT_THAT(refusal("lib:none.so"), HasSubstr("plug-in 'none.so': there is no such file"));
  EXPECT_THAT(refusal("lib:" + std::string(PLUGINS)), HasSubstr("there is no such file"));
  EXPECT_THAT(refusal("lib:" MANTISSA_PROGRAM), HasSubstr("cannot be loaded"));
  EXPECT_THAT(refusal(std::string("lib:") + PLUGINS + "/plugin_one.so"), HasSubstr("exports no model"));
  EXPECT_THAT(refusal(plugin("incomplete")),
              AllOf(HasSubstr("cannot be loaded"), HasSubstr("function_of_another")));
}

TEST(ModelPlugins, WhatAModelThrowsNamesThePlugin) {
  EXPECT_THAT(refusal(plugin("throws")), HasSubstr("model_throws.so': this model is never made"));
  EXPECT_THAT(refusal(plugin("empty")), HasSubstr("model_empty.so' returned no model"));
}

/// Runs the command line in a folder of its own.
class ModelPluginRuns : public InFolder {
 protected:
  struct Outcome {
    int status;
    std::string text;
  };
  Outcome run(const std::string& arguments) const {
    const std::string out = (folder_ / "out").string();
    const std::string command =
        "cd " + folder_.string() + " && '" MANTISSA_PROGRAM "' " + arguments + " >" + out + " 2>&1";
    const int status = std::system(command.c_str());
    std::ifstream in(out);
    return {WEXITSTATUS(status), {std::istreambuf_iterator<char>(in), {}}};
  }
};

TEST_F(ModelPluginRuns, TrainPlanResumeAndInspect) {
  const std::string fit = "fit --quiet --max-steps 4 --output run --model " + plugin("images");
  const Outcome trained = run(fit + " --precision bf16-mixed");
  ASSERT_EQ(trained.status, 0) << trained.text;
  for (const char* command : {"resume run --quiet --max-steps 6", "validate run --quiet",
                              "predict run --quiet", "inspect run/weights.safetensors"}) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.status, 0) << command << ": " << outcome.text;
  }
  EXPECT_THAT(run("inspect run/weights.safetensors").text, HasSubstr("first.weight"));
  const Outcome planned =
      run("fit --quiet --plan --output planned --precision nf4-dq --lora r=2,alpha=4 --model " +
          plugin("images"));
  EXPECT_EQ(planned.status, 0) << planned.text;
  EXPECT_THAT(planned.text, HasSubstr("nf4-dq"));
}

TEST_F(ModelPluginRuns, APluginThatIsGoneIsNamed) {
  std::filesystem::copy_file(std::string(PLUGINS) + "/model_images.so", folder_ / "mine.so");
  ASSERT_EQ(run("fit --quiet --max-steps 1 --output run --model lib:mine.so").status, 0);
  std::filesystem::remove(folder_ / "mine.so");
  const Outcome resumed = run("resume run --quiet --max-steps 2");
  EXPECT_NE(resumed.status, 0);
  EXPECT_THAT(resumed.text, HasSubstr("lib:mine.so in 'run/config.yaml', and 'mine.so' is not there"));
}

}  // namespace
}  // namespace mantissa::model_plugins_test
