#include "mantissa/core/evaluation_mode.h"

#include <gtest/gtest.h>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

namespace mantissa::evaluation_mode_test {
namespace {

TEST(EvaluationMode, EachSubmoduleGetsItsOwnModeBack) {
  torch::nn::ModuleList net(torch::nn::ModuleList(torch::nn::Linear(1, 1)), torch::nn::Linear(1, 1));
  net[1]->eval();  // frozen by the user
  {
    const EvaluationMode evaluation(*net);
    for (const auto& part : net->modules()) EXPECT_FALSE(part->is_training());
  }
  EXPECT_TRUE(net->is_training());
  EXPECT_TRUE(net[0]->is_training());
  EXPECT_FALSE(net[1]->is_training());
  net->eval();
  { const EvaluationMode evaluation(*net); }
  EXPECT_FALSE(net->is_training());
}

}  // namespace
}  // namespace mantissa::evaluation_mode_test
