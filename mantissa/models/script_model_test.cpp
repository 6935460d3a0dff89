#include "mantissa/models/script_model.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "mantissa/core/test_support_internal.h"

namespace mantissa::script_model_test {
namespace {

using Script = torch::jit::Module;
using testing::AllOf;
using testing::HasSubstr;

Script linear_script(int64_t in, int64_t out) {
  // Python's TorchScript marks the second class of a name like this.
  Script linear(c10::QualifiedName("__torch__.torch.nn.modules.linear.___torch_mangle_7.Linear"));
  linear.register_parameter("weight", at::rand({out, in}).requires_grad_(), false);
  linear.register_parameter("bias", at::rand({out}).requires_grad_(), false);
  linear.define("def forward(self, x):\n    return torch.linear(x, self.weight, self.bias)\n");
  return linear;
}

Script norm_script(int64_t features) {
  Script norm(c10::QualifiedName("__torch__.torch.nn.modules.batchnorm.BatchNorm1d"));
  norm.register_attribute("training", c10::BoolType::get(), true);
  norm.register_parameter("weight", at::ones({features}).requires_grad_(), false);
  norm.register_parameter("bias", at::zeros({features}).requires_grad_(), false);
  norm.register_buffer("running_mean", at::zeros({features}));
  norm.register_buffer("running_var", at::ones({features}));
  norm.register_buffer("num_batches_tracked", at::zeros({}, at::kLong));
  norm.define(
      "def forward(self, x):\n"
      "    return torch.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var, "
      "self.training, 0.1, 1e-5, False)\n");
  return norm;
}

class ScriptModels : public InFolder {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  /// Writes a model of two linear layers with a batch norm between them, and a scale of its own.
  std::string write_net() const {
    Script net(c10::QualifiedName("__torch__.Net"));
    net.register_module("first", linear_script(4, 3));
    net.register_module("norm", norm_script(3));
    net.register_module("second", linear_script(3, 2));
    net.register_parameter("scale", at::ones({2}).requires_grad_(), false);
    net.define(
        "def forward(self, x):\n    return "
        "self.second.forward(self.norm.forward(self.first.forward(x)).relu()) * self.scale\n");
    net.save(path("net.pt"));
    return path("net.pt");
  }
  std::string write(const std::string& code) const {
    Script net(c10::QualifiedName("__torch__.Net"));
    net.register_parameter("scale", at::ones({2}).requires_grad_(), false);
    net.define(code);
    net.save(path("net.pt"));
    return path("net.pt");
  }
};

TEST_F(ScriptModels, HasTheTensorsOfTheScript) {
  ScriptModel model(write_net());
  const std::vector<std::string> names = {"scale",     "first.weight",  "first.bias", "norm.weight",
                                          "norm.bias", "second.weight", "second.bias"};
  EXPECT_THAT(model.named_parameters().keys(), testing::UnorderedElementsAreArray(names));
  EXPECT_THAT(
      model.named_buffers().keys(),
      testing::UnorderedElementsAre("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"));
  for (const at::Tensor& parameter : model.parameters()) EXPECT_TRUE(parameter.requires_grad());
  const auto parts = model.named_children();
  ASSERT_TRUE(parts["first"]->as<torch::nn::Linear>());
  EXPECT_EQ(parts["second"]->as<torch::nn::Linear>()->options.in_features(), 3);
  EXPECT_TRUE(parts["norm"]->as<torch::nn::BatchNorm1d>());
}

TEST_F(ScriptModels, TrainsTheTensorsThatTheScriptComputesWith) {
  ScriptModel model(write_net());
  model.eval();
  const at::Tensor x = at::rand({5, 4}), before = model.forward(x);
  {
    const at::NoGradGuard no_grad;
    model.named_parameters()["scale"].mul_(2);
    model.named_parameters()["second.weight"].mul_(3);
    model.named_parameters()["second.bias"].mul_(3);
  }
  EXPECT_TRUE(at::allclose(model.forward(x), before * 6));
  model.forward(x).sum().backward();
  for (const auto& item : model.named_parameters()) EXPECT_TRUE(item.value().grad().defined()) << item.key();
}

TEST_F(ScriptModels, TrainingChangesTheBuffersOfBoth) {
  ScriptModel model(write_net());
  const at::Tensor x = at::rand({5, 4}) + 3;
  model.train();
  model.forward(x);
  EXPECT_FALSE(at::equal(model.named_buffers()["norm.running_mean"], at::zeros({3})));
  model.eval();
  const at::Tensor evaluated = model.forward(x);
  EXPECT_TRUE(at::equal(model.forward(x), evaluated));
  // A buffer that is loaded counts for the script.
  {
    const at::NoGradGuard no_grad;
    model.named_buffers()["norm.running_mean"].zero_();
  }
  EXPECT_FALSE(at::allclose(model.forward(x), evaluated));
}

TEST_F(ScriptModels, AnotherDtypeReachesTheScript) {
  ScriptModel model(write_net());
  model.to(at::kDouble);
  model.eval();
  EXPECT_EQ(model.forward(at::rand({5, 4}, at::kDouble)).scalar_type(), at::kDouble);
}

TEST_F(ScriptModels, TiedWeightsStayTied) {
  Script net(c10::QualifiedName("__torch__.Net")), first = linear_script(3, 3), second = linear_script(3, 3);
  second.setattr("weight", first.attr("weight"));
  net.register_module("first", first);
  net.register_module("second", second);
  net.define("def forward(self, x):\n    return self.second.forward(self.first.forward(x))\n");
  net.save(path("tied.pt"));
  ScriptModel model(path("tied.pt"));
  const auto parts = model.named_children();
  EXPECT_TRUE(parts["first"]->as<torch::nn::Linear>()->weight.is_same(
      parts["second"]->as<torch::nn::Linear>()->weight));
}

TEST_F(ScriptModels, BadFilesAreNamed) {
  const auto message = [](const std::string& file) {
    return error_of<c10::ValueError>([&] { ScriptModel model(file); });
  };
  EXPECT_THAT(message(path("none.pt")),
              AllOf(HasSubstr(path("none.pt")), HasSubstr("there is no such file")));
  EXPECT_THAT(message(folder_.string()), HasSubstr("there is no such file"));
  std::ofstream(path("text.pt")) << "no model";
  EXPECT_THAT(message(path("text.pt")),
              AllOf(HasSubstr("text.pt' cannot be read"), HasSubstr("torch.jit.save()")));
  const std::string net = write_net();
  std::filesystem::resize_file(net, std::filesystem::file_size(net) / 2);
  EXPECT_THAT(message(net), HasSubstr("net.pt' cannot be read"));
  Script empty(c10::QualifiedName("__torch__.Empty"));
  empty.define("def forward(self, x):\n    return x\n");
  empty.save(path("empty.pt"));
  EXPECT_THAT(message(path("empty.pt")), HasSubstr("has no parameter to train"));
}

TEST_F(ScriptModels, AForwardThatCannotTrainIsNamed) {
  const auto message = [](const std::string& file) {
    ScriptModel model(file);
    return error_of<c10::ValueError>([&] { model.forward(at::rand({5, 4})); });
  };
  EXPECT_THAT(message(write("def forward(self, x):\n    return (x, x)\n")),
              HasSubstr("forward() returned Tuple"));
  EXPECT_THAT(
      message(write("def forward(self, x):\n    return x * self.scale\n")),
      AllOf(HasSubstr("net.pt': forward() failed for an input of [5, 4]: The size of tensor a (4) must"),
            testing::Not(HasSubstr("\n"))));
}

}  // namespace
}  // namespace mantissa::script_model_test
