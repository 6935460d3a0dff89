#include "mantissa/optim/bitsandbytes_state.h"

#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <initializer_list>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/optim/eight_bit_test_support_internal.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/optim/optimizers_8bit.h"
#include "mantissa/optim/test_support_internal.h"

namespace mantissa::bitsandbytes_state_test {
namespace {

using namespace test8bit;
using testing::AllOf;
using testing::HasSubstr;
using torch::optim::RMSpropOptions;

class BitsandbytesStates : public EightBit {};
INSTANTIATE_TEST_SUITE_P(Kinds, BitsandbytesStates, testing::ValuesIn(all_8bit_optimizers()),
                         [](const auto& info) { return info.param.name; });

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

// bitsandbytes/optim/optimizer.py: Optimizer2State has the options of AdEMAMix, which are off in its others.
TEST(BitsandbytesState, GroupsOfOptimizersWithTwoStatesHaveTheOptionsOfAdEMAMix) {
  const auto group = [](const LowBitOptimizer& optimizer) {
    return StateReader(bitsandbytes_state(optimizer)).at("param_groups").at(0).to_dict();
  };
  const std::vector<at::Tensor> net = {weight(9)};
  StateDict adam = group(Adam8bit(net));
  for (const char* const name : {"t_alpha", "t_beta3"}) {
    ASSERT_TRUE(adam.contains(name)) << name;
    EXPECT_TRUE(adam.at(name).is_null()) << name;
    adam.erase(name);
  }
  ASSERT_TRUE(adam.contains("alpha"));
  EXPECT_EQ(*adam.at("alpha").get_if<double>(), 0);
  adam.erase("alpha");
  const auto names = [](const StateDict& dict) {
    std::vector<std::string> all;
    for (const auto& [name, value] : dict) all.push_back(name);
    return all;
  };
  EXPECT_EQ(names(adam), (std::vector<std::string>{"betas", "eps", "lr", "params", "weight_decay"}));
  EXPECT_EQ(names(group(Lion8bit(net))), names(adam));
}

TEST(BitsandbytesState, EachOptionOfAGroupComesBack) {
  const std::vector<at::Tensor> net = {weight(9)};
  const Adam8bit saved(net, AdamOptions(0.25).betas({0.5, 0.75}).eps(0.125).weight_decay(0.375));
  Adam8bit loaded(net);
  load_bitsandbytes_state(loaded, StateReader(bitsandbytes_state(saved)));
  EXPECT_EQ(difference(optimizer_state(loaded), optimizer_state(saved)), "");
}

TEST(BitsandbytesState, ValuesOfAMapMayDifferByRounding) {
  const at::Tensor p = weight(4096);
  Adam8bit optimizer({p});
  take_noisy_steps(optimizer, 0, 1);
  const auto error_at = [&](float near_0) {
    StateDict theirs = snapshot(bitsandbytes_state(optimizer, /*is_wrapped=*/false));
    at::Tensor map = *theirs.at("state")
                          .get_if<StateDict>()
                          ->at("0")
                          .get_if<StateDict>()
                          ->at("qmap1")
                          .get_if<at::Tensor>();
    map.masked_fill_(map == 0, near_0);
    return error_of([&] { load_bitsandbytes_state(optimizer, StateReader(theirs)); });
  };
  EXPECT_EQ(error_at(1e-6F), "no error");
  EXPECT_EQ(error_at(-1e-6F), "no error");
  EXPECT_THAT(error_at(1.1e-6F), HasSubstr("is another map"));
}

TEST_P(BitsandbytesStates, ConvertsToTheLayoutOfBitsandbytesAndBack) {
  const auto make_net = [] { return std::vector<at::Tensor>{weight(4097), weight(5)}; };
  for (const bool is_wrapped : {true, false}) {
    const auto net = make_net(), resumed_net = make_net();
    const auto straight = make(net), resumed = make(resumed_net);
    take_noisy_steps(*straight, 0, 3);
    straight->param_groups()[0].options().set_lr(0.002);
    const StateDict theirs = snapshot(bitsandbytes_state(*straight, is_wrapped));
    const StateReader first = StateReader(theirs).at("state").at("0");
    EXPECT_EQ(first.at("step").to_int(), 3);
    const StateReader tensors = is_wrapped ? first.at("__bnb_optimizer_quant_state__") : first;
    EXPECT_EQ(tensors.at("qmap1").to_tensor().numel(), 256);
    EXPECT_EQ(tensors.at("absmax1").to_tensor().numel(), 17);
    EXPECT_EQ(StateReader(theirs).at("param_groups").at(0).at("lr").to_double(), 0.002);
    {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < net.size(); ++i) at::Tensor(resumed_net[i]).copy_(net[i]);
    }
    load_bitsandbytes_state(*resumed, StateReader(theirs));
    EXPECT_EQ(difference(optimizer_state(*resumed), optimizer_state(*straight)), "");
    take_noisy_steps(*straight, 3, 5);
    take_noisy_steps(*resumed, 3, 5);
    for (size_t i = 0; i < net.size(); ++i) EXPECT_TRUE(at::equal(net[i], resumed_net[i]));
  }
}

TEST_P(BitsandbytesStates, OneThatDoesNotFitChangesNothing) {
  const at::Tensor p = weight(4096);
  const auto optimizer = make({p});
  take_noisy_steps(*optimizer, 0, 2);
  const StateDict before = snapshot(optimizer_state(*optimizer));
  const auto error_with = [&](const std::function<void(StateDict&, StateDict&)>& change) {
    StateDict theirs = snapshot(bitsandbytes_state(*optimizer, /*is_wrapped=*/false));
    StateDict& state = *theirs.at("state").get_if<StateDict>()->at("0").get_if<StateDict>();
    StateDict& group = *(*theirs.at("param_groups").get_if<StateList>())[0].get_if<StateDict>();
    group.insert_or_assign("lr", 77.0);
    change(state, group);
    const std::string error =
        error_of([&] { load_bitsandbytes_state(*optimizer, StateReader(theirs, "theirs")); });
    EXPECT_EQ(difference(optimizer_state(*optimizer), before), "");
    return error;
  };
  EXPECT_THAT(
      error_with([](auto& state, auto&) { state.insert_or_assign("qmap1", at::linspace(-1, 1, 256)); }),
      HasSubstr("theirs.state.0.qmap1: is another map"));
  EXPECT_THAT(error_with([](auto& state, auto&) { state.insert_or_assign("unorm_vec", at::ones({1})); }),
              HasSubstr("state.0.unorm_vec: is not a value of this optimizer's state"));
  EXPECT_THAT(error_with([](auto& state, auto&) { state.erase("absmax1"); }), HasSubstr("has no 'absmax1'"));
  EXPECT_THAT(error_with([](auto& state, auto&) { state.insert_or_assign("absmax1", at::ones({3})); }),
              HasSubstr("absmax1: has shape [3]; [16] was expected"));
  EXPECT_THAT(error_with([](auto& state, auto&) { state.insert_or_assign("state1", at::ones({4096})); }),
              HasSubstr("state1: is Float; Byte was expected"));
  EXPECT_THAT(error_with([](auto&, auto& group) {
                group.insert_or_assign("params", StateList{0, 1});
              }),
              HasSubstr("params: the 2 saved parameters do not match"));
  EXPECT_THAT(error_with([](auto&, auto& group) { group.erase("betas"); }), HasSubstr("'betas' is missing"));
  EXPECT_THAT(error_with([](auto& state, auto&) { state.insert_or_assign("step", at::ones({2})); }),
              HasSubstr("theirs.state.0.step: is not a single number"));
  EXPECT_THAT(error_with([](auto&, auto& group) { group.insert_or_assign("lr", -1.0); }),
              AllOf(HasSubstr("theirs.param_groups.0: " + GetParam().name), HasSubstr(" -1 is invalid")));
  EXPECT_THAT(error_with([](auto&, auto& group) { group.insert_or_assign("lr", NAN); }),
              HasSubstr(" nan is invalid"));
  if (GetParam().name == "Adagrad8bit") return;  // it has no betas
  // What the optimizer would refuse in its next step.
  EXPECT_THAT(error_with([](auto&, auto& group) {
                group.insert_or_assign("betas", StateList{1.0, 0.9});
              }),
              HasSubstr(" 1 is invalid; "));
  EXPECT_THAT(error_with([](auto&, auto& group) { group.insert_or_assign("lr", "fast"); }),
              HasSubstr("lr: is text"));
}

TEST(BitsandbytesState, OneWithAnotherNumberOfGroupsChangesNothing) {
  const at::Tensor p = weight(4096);
  Adam8bit optimizer({p});
  take_noisy_steps(optimizer, 0, 1);
  const StateDict before = snapshot(optimizer_state(optimizer));
  StateDict theirs = snapshot(bitsandbytes_state(optimizer));
  StateList& groups = *theirs.at("param_groups").get_if<StateList>();
  groups.push_back(groups.front());
  EXPECT_THAT(error_of([&] { load_bitsandbytes_state(optimizer, StateReader(theirs, "theirs")); }),
              HasSubstr("theirs.param_groups: are 2; the optimizer has 1"));
  EXPECT_EQ(difference(optimizer_state(optimizer), before), "");
}

TEST(BitsandbytesState, OneWithoutMomentumChangesNothing) {
  const at::Tensor p = weight(4096), q = weight(4096);
  SGD8bit sgd({p}, SGDOptions(0.01).momentum(0.9));
  RMSprop8bit rmsprop({q});
  for (LowBitOptimizer* const optimizer : std::initializer_list<LowBitOptimizer*>{&sgd, &rmsprop}) {
    take_noisy_steps(*optimizer, 0, 1);
    const StateDict before = snapshot(optimizer_state(*optimizer));
    StateDict theirs = snapshot(bitsandbytes_state(*optimizer));
    StateDict& group = *(*theirs.at("param_groups").get_if<StateList>())[0].get_if<StateDict>();
    group.insert_or_assign("betas", StateList{0.0, 0.0});
    EXPECT_THAT(
        value_error([&] { load_bitsandbytes_state(*optimizer, StateReader(theirs, "theirs")); }),
        testing::ContainsRegex("theirs.param_groups.0: .*(momentum 0 is invalid|alpha 0 keeps no state)"));
    EXPECT_EQ(difference(optimizer_state(*optimizer), before), "");
  }
}

TEST(BitsandbytesState, AGroupThatMaximizesHasNoForm) {
  EXPECT_THAT(value_error([] { bitsandbytes_state(Adam8bit({weight(9)}, AdamOptions().maximize(true))); }),
              HasSubstr("parameter group 0 maximizes"));
}

}  // namespace
}  // namespace mantissa::bitsandbytes_state_test
