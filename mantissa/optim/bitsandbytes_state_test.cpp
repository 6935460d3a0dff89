#include "mantissa/optim/bitsandbytes_state.h"

#include <gtest/gtest.h>
#include <vector>

#include <torch/torch.h>

#include "mantissa/optim/optimizers_8bit.h"

namespace mantissa::bitsandbytes_state_test {
namespace {

using torch::optim::RMSpropOptions;

// bitsandbytes/optim/{lion,sgd,rmsprop,adagrad}.py: what they have in place of the betas and eps of Adam.
TEST(BitsandbytesState, GroupsHaveTheBetasAndEpsOfBitsandbytes) {
  const auto numbers = [](const LowBitOptimizer& optimizer) {
    const StateDict theirs = bitsandbytes_state(optimizer);
    const StateReader group = StateReader(theirs).at("param_groups").at(0), betas = group.at("betas");
    return std::vector<double>{betas.at(0).to_double(), betas.at(1).to_double(), group.at("eps").to_double()};
  };
  const std::vector<at::Tensor> net = {torch::ones({9}, torch::requires_grad())};
  EXPECT_EQ(numbers(Lion8bit(net, LionOptions().betas({0.8, 0.7}))), (std::vector<double>{0.8, 0.7, 0}));
  EXPECT_EQ(numbers(SGD8bit(net, SGDOptions(0.1).momentum(0.9))), (std::vector<double>{0.9, 0, 0}));
  EXPECT_EQ(numbers(RMSprop8bit(net, RMSpropOptions().alpha(0.8).eps(0.5))),
            (std::vector<double>{0.8, 0, 0.5}));
  EXPECT_EQ(numbers(Adagrad8bit(net, AdagradOptions().eps(0.5))), (std::vector<double>{0, 0, 0.5}));
}

}  // namespace
}  // namespace mantissa::bitsandbytes_state_test
