#include "mantissa/optim/state_format.h"

#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/optim/adam.h"
#include "mantissa/optim/blockwise_momentum_internal.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/optim/test_support_internal.h"

namespace mantissa::state_format_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::optim::OptimizerParamGroup;
using Groups = std::vector<OptimizerParamGroup>;

// The optimizer's formats are checked before any value changes, and the error names the place.
TEST(StateFormats, ValuesInAnotherFormatAreRefusedByName) {
  std::vector<at::Tensor> parameters;
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{3, 4}, {}, {7}})
    parameters.push_back(at::ones(sizes).set_requires_grad(true));
  BlockwiseMomentum optimizer(Groups{OptimizerParamGroup(parameters)}, SGDOptions(0.1));
  take_noisy_steps(optimizer, 0, 2);
  const StateDict before = snapshot(optimizer_state(optimizer));
  const auto error_with = [&](const char* name, const std::function<void(StateDict&)>& change) {
    StateDict state = snapshot(before);
    change(*state.at("state").get_if<StateDict>()->at(name).get_if<StateDict>());
    const std::string error =
        error_of([&] { load_optimizer_state(optimizer, StateReader(state, "optimizers.0")); });
    EXPECT_EQ(difference(optimizer_state(optimizer), before), "");
    return error;
  };
  // Parameter 2 has 7 elements, which make two blocks of four.
  EXPECT_THAT(error_with("2", [](StateDict& s) { s["codes"] = at::zeros({7}, at::kByte); }),
              HasSubstr("optimizers.0.state.2.codes: has shape [7]; [8] was expected; load it into"));
  EXPECT_THAT(error_with("2", [](StateDict& s) { s["absmax"] = at::zeros({1}); }),
              HasSubstr("optimizers.0.state.2.absmax: has shape [1]; [2] was expected"));
  EXPECT_THAT(error_with("2", [](StateDict& s) { s["codes"] = at::zeros({8}, at::kChar); }),
              HasSubstr("optimizers.0.state.2.codes: is Char; Byte was expected"));
  EXPECT_THAT(error_with("2", [](StateDict& s) { s["absmax"] = at::zeros({2}, at::kHalf); }),
              HasSubstr("optimizers.0.state.2.absmax: is Half; Float was expected"));
  EXPECT_THAT(error_with("2", [](StateDict& s) { s["absmax"] = 1.0; }),
              HasSubstr("optimizers.0.state.2.absmax: is a floating-point number; a tensor was expected"));
  EXPECT_THAT(error_with("0", [](StateDict& s) { s.erase("absmax"); }),
              HasSubstr("optimizers.0.state.0: has no 'absmax'; the values are step, codes, absmax"));
  EXPECT_THAT(
      error_with("0", [](StateDict& s) { s["scale"] = at::zeros({3}); }),
      HasSubstr("optimizers.0.state.0.scale: is not a value of this optimizer's state, which has step"));
}

TEST(StateFormats, AFileIsCheckedByThemToo) {
  const auto stepped = [](int64_t size) {
    const at::Tensor p = at::ones({size}).set_requires_grad(true);
    auto optimizer = std::make_unique<BlockwiseMomentum>(Groups{OptimizerParamGroup({p})}, SGDOptions(0.1));
    p.mutable_grad() = at::ones({size});
    optimizer->step();
    return optimizer;
  };
  const auto saved = stepped(7), same = stepped(7), larger = stepped(9);
  std::stringstream file;
  torch::save(*saved, file);
  torch::load(*same, file);
  EXPECT_EQ(difference(optimizer_state(*same), optimizer_state(*saved)), "");
  const StateDict before = snapshot(optimizer_state(*larger));
  file.seekg(0);
  EXPECT_THAT(
      error_of([&] { torch::load(*larger, file); }),
      AllOf(HasSubstr("BlockwiseMomentum::load: the file's "), HasSubstr(" for parameter 0 of group 0"),
            HasSubstr("was expected; load it into an optimizer of the net")));
  EXPECT_EQ(difference(optimizer_state(*larger), before), "");
}

TEST(StateFormats, OursRefuseWholeNumbersForMoments) {
  const at::Tensor p = at::ones({4}).set_requires_grad(true);
  Adam optimizer({p});
  p.mutable_grad() = at::ones({4});
  optimizer.step();
  StateDict state = snapshot(optimizer_state(optimizer));
  (*state.at("state").get_if<StateDict>()->at("0").get_if<StateDict>())["exp_avg"] = at::ones({4}, at::kLong);
  EXPECT_THAT(error_of([&] { load_optimizer_state(optimizer, StateReader(state)); }),
              HasSubstr("state.0.exp_avg: is Long; a floating-point dtype was expected"));
}

}  // namespace
}  // namespace mantissa::state_format_test
