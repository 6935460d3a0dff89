#include "mantissa/optim/optimizer_state.h"

#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/device.h"
#include "mantissa/core/test_support_internal.h"
#include "mantissa/optim/adam.h"
#include "mantissa/optim/adamw.h"
#include "mantissa/optim/blockwise_momentum_internal.h"
#include "mantissa/optim/fused_adagrad.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/optim/muon.h"
#include "mantissa/optim/optimizers_4bit.h"
#include "mantissa/optim/sgd.h"

namespace mantissa::optimizer_state_test {
namespace {

using testing::HasSubstr;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using Groups = std::vector<OptimizerParamGroup>;

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Optimizer>(const Groups&)> make;
  at::ScalarType dtype = at::kFloat;
};

template <typename Made, typename Options>
Kind kind(const char* name, const Options& options) {
  return {name, [options](const Groups& groups) { return std::make_unique<Made>(groups, options); }};
}

/// Every optimizer gets another seed, so that one whose state is not loaded takes other steps.
template <typename Made, typename Options>
Kind rounding(const char* name, const Options& options) {
  return {name,
          [options](const Groups& groups) {
            return std::make_unique<Made>(groups, options, FusedOptions{.stochastic_rounding = true});
          },
          at::kBFloat16};
}

/// 16-bit weights with 8-bit states, except in the smallest tensors.
template <typename Made, typename Options>
Kind kind_8bit(const char* name, const Options& options, int64_t min_8bit_size = 5) {
  return {name,
          [options, min_8bit_size](const Groups& groups) {
            const LowBitOptions all = {.min_8bit_size = min_8bit_size, .stochastic_rounding = true};
            return std::make_unique<Made>(groups, options, all);
          },
          at::kBFloat16};
}

/// AdamW steps all parameters, because each group here has one that is no matrix. muon_test.cpp has matrices.
template <typename Made, typename Options>
Kind kind_muon(const char* name, const Options& all) {
  return {name,
          [all](const Groups& groups) {
            Groups own;
            for (const auto& group : groups)
              own.emplace_back(group.params(),
                               std::make_unique<MuonOptions>(MuonOptions(0.1).use_muon(false)));
            return std::make_unique<Made>(own, MuonOptions(0.1), all);
          },
          at::kBFloat16};
}

const std::vector<Kind>& kinds() {
  namespace lib = torch::optim;
  static const std::vector<Kind> all = {
      kind<Adam>("Adam", AdamOptions(0.1).amsgrad(true).weight_decay(0.01)),
      kind<AdamW>("AdamW", AdamWOptions(0.1)),
      kind<SGD>("SGD", SGDOptions(0.1).momentum(0.9).nesterov(true)),
      kind<SGD>("PlainSGD", SGDOptions(0.1)),
      kind<FusedAdam>("FusedAdam", AdamOptions(0.1)),
      kind<FusedAdamW>("FusedAdamW", AdamWOptions(0.1)),
      kind<FusedSGD>("FusedSGD", SGDOptions(0.1).momentum(0.9)),
      kind<FusedAdagrad>("FusedAdagrad", AdagradOptions(0.1)),
      rounding<FusedAdam>("RoundingAdam", AdamOptions(0.001)),
      rounding<FusedSGD>("RoundingSGD", SGDOptions(0.001).momentum(0.9)),
      rounding<FusedAdagrad>("RoundingAdagrad", AdagradOptions(0.001)),
      kind_8bit<Adam8bit>("Adam8bit", AdamOptions(0.1)),
      kind_8bit<AdamW8bit>("AdamW8bit", AdamWOptions(0.1), /*min_8bit_size=*/1000),
      kind_8bit<Lion8bit>("Lion8bit", LionOptions(0.01)),
      kind_8bit<SGD8bit>("SGD8bit", SGDOptions(0.1).momentum(0.9)),
      kind_8bit<RMSprop8bit>("RMSprop8bit", lib::RMSpropOptions(0.1)),
      kind_8bit<Adagrad8bit>("Adagrad8bit", AdagradOptions(0.1)),
      kind_8bit<Adam4bit>("Adam4bit", AdamOptions(0.1)),
      kind_8bit<AdamW4bit>("AdamW4bit", AdamWOptions(0.1)),
      kind_muon<Muon>("Muon", FusedOptions{.stochastic_rounding = true}),
      kind_muon<Muon8bit>("Muon8bit", LowBitOptions{.min_8bit_size = 5, .stochastic_rounding = true}),
      kind<BlockwiseMomentum>("BlockwiseMomentum", SGDOptions(0.1).momentum(0.9)),
      kind<lib::Adam>("TorchAdam", lib::AdamOptions(0.1).amsgrad(true)),
      kind<lib::AdamW>("TorchAdamW", lib::AdamWOptions(0.1)),
      kind<lib::SGD>("TorchSGD", lib::SGDOptions(0.1).momentum(0.9)),
      kind<lib::RMSprop>("TorchRMSprop", lib::RMSpropOptions(0.1).momentum(0.5).centered(true)),
      kind<lib::Adagrad>("TorchAdagrad", lib::AdagradOptions(0.1).lr_decay(0.01))};
  return all;
}

/// Parameters of several shapes; the last one never has a gradient.
struct Net {
  explicit Net(at::ScalarType dtype) {
    for (const std::vector<int64_t>& sizes :
         std::vector<std::vector<int64_t>>{{3, 4}, {}, {7}, {2, 2, 2}, {5}}) {
      parameters.push_back(at::linspace(-1, 1, c10::multiply_integers(sizes)).reshape(sizes).to(dtype));
      parameters.back().set_requires_grad(true);
    }
  }
  Groups groups() const {
    return {OptimizerParamGroup({parameters.begin(), parameters.begin() + 2}),
            OptimizerParamGroup({parameters.begin() + 2, parameters.end()})};
  }
  void take_steps(Optimizer& optimizer, int64_t from, int64_t to) const {
    for (int64_t step = from; step < to; ++step) {
      for (size_t i = 0; i + 1 < parameters.size(); ++i) {
        at::Tensor parameter = parameters[i];
        parameter.mutable_grad() =
            (at::ones_like(parameter, at::kFloat) * (step % 3 - 0.7) * (i + 1.3)).to(parameter.scalar_type());
      }
      optimizer.step();
    }
  }
  void copy_from(const Net& other) const {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) at::Tensor(parameters[i]).copy_(other.parameters[i]);
  }
  StateDict values() const { return {{"parameters", StateList(parameters.begin(), parameters.end())}}; }

  std::vector<at::Tensor> parameters;
};

class OptimizerState : public testing::TestWithParam<Kind> {};

TEST_P(OptimizerState, ContinuesBitForBit) {
  const Net straight(GetParam().dtype), stopped(GetParam().dtype), resumed(GetParam().dtype);
  const auto one = GetParam().make(straight.groups()), two = GetParam().make(stopped.groups());
  one->param_groups()[1].options().set_lr(0.03);
  two->param_groups()[1].options().set_lr(0.03);
  if (StateReader(optimizer_state(*one)).find("stochastic_rounding_seed")) {
    load_optimizer_state(*two, StateReader(snapshot(optimizer_state(*one))));  // the same seed
  }
  straight.take_steps(*one, 0, 9);
  stopped.take_steps(*two, 0, 4);
  const StateDict saved = snapshot(optimizer_state(*two));

  resumed.copy_from(stopped);
  const auto three = GetParam().make(resumed.groups());
  load_optimizer_state(*three, StateReader(saved));
  EXPECT_EQ(difference(optimizer_state(*three), saved), "");
  EXPECT_EQ(three->param_groups()[1].options().get_lr(), 0.03);
  resumed.take_steps(*three, 4, 9);
  EXPECT_EQ(difference(resumed.values(), straight.values()), "");
  EXPECT_EQ(difference(optimizer_state(*three), optimizer_state(*one)), "");
}

// Loading works in place, into an optimizer that has taken other steps, also if the saved one had taken none.
TEST_P(OptimizerState, DropsWhatTheOptimizerHad) {
  const Net net(GetParam().dtype);
  const auto optimizer = GetParam().make(net.groups());
  const StateDict before_first_step = snapshot(optimizer_state(*optimizer));
  net.take_steps(*optimizer, 0, 3);
  const StateDict after_steps = snapshot(optimizer_state(*optimizer));
  load_optimizer_state(*optimizer, StateReader(before_first_step));
  EXPECT_EQ(difference(optimizer_state(*optimizer), before_first_step), "");
  load_optimizer_state(*optimizer, StateReader(after_steps));
  EXPECT_EQ(difference(optimizer_state(*optimizer), after_steps), "");
}

TEST_P(OptimizerState, SharesNoMemoryOnceLoaded) {
  const Net net(GetParam().dtype);
  const auto optimizer = GetParam().make(net.groups());
  net.take_steps(*optimizer, 0, 2);
  const StateDict saved = snapshot(optimizer_state(*optimizer)), untouched = snapshot(saved);
  load_optimizer_state(*optimizer, StateReader(saved));
  net.take_steps(*optimizer, 2, 4);
  EXPECT_EQ(difference(saved, untouched), "");
}

/// Returns the first tensor in a parameter's state that is not 0-dim, or null.
at::Tensor* first_moment(StateDict& state) {
  for (auto& [number, entry] : *state.at("state").get_if<StateDict>()) {
    for (auto& [name, value] : *entry.get_if<StateDict>()) {
      auto* tensor = value.get_if<at::Tensor>();
      if (tensor && tensor->dim() > 0) return tensor;
    }
  }
  return nullptr;
}

TEST_P(OptimizerState, RefusesWhatDoesNotFitAndChangesNothing) {
  const Net net(GetParam().dtype);
  const auto optimizer = GetParam().make(net.groups());
  net.take_steps(*optimizer, 0, 2);
  const StateDict before = snapshot(optimizer_state(*optimizer));
  const auto error_with = [&](const auto& change) {
    StateDict state = snapshot(before);
    (*(*state.at("param_groups").get_if<StateList>())[0].get_if<StateDict>()).insert_or_assign("lr", 77.0);
    change(state);
    const std::string error =
        error_of([&] { load_optimizer_state(*optimizer, StateReader(state, "optimizers.0")); });
    EXPECT_EQ(difference(optimizer_state(*optimizer), before), "");
    return error;
  };
  const auto group = [](StateDict& state) -> StateDict& {
    return *(*state.at("param_groups").get_if<StateList>())[0].get_if<StateDict>();
  };
  EXPECT_THAT(error_with([](StateDict& s) { s.erase("state"); }),
              HasSubstr("optimizers.0: 'state' is missing"));
  EXPECT_THAT(error_with([](StateDict& s) { s.erase("param_groups"); }),
              HasSubstr("'param_groups' is missing"));
  EXPECT_THAT(error_with([](StateDict& s) { s.at("param_groups").get_if<StateList>()->pop_back(); }),
              HasSubstr("optimizers.0.param_groups: are 1; the optimizer has 2; load it into"));
  EXPECT_THAT(error_with([](StateDict& s) {
                auto& groups = *s.at("param_groups").get_if<StateList>();
                groups.emplace_back(groups.front());
              }),
              HasSubstr("optimizers.0.param_groups: are 3; the optimizer has 2; load it into"));
  EXPECT_THAT(error_with([&](StateDict& s) { (*s.at("param_groups").get_if<StateList>())[1] = 1; }),
              HasSubstr("optimizers.0.param_groups.1: is a whole number; a dict was expected"));
  EXPECT_THAT(
      error_with([&](StateDict& s) { group(s).at("params").get_if<StateList>()->pop_back(); }),
      HasSubstr("optimizers.0.param_groups.0.params: the 1 saved parameters do not match the optimizer's"));
  EXPECT_THAT(error_with([&](StateDict& s) { group(s).erase("lr"); }),
              HasSubstr("param_groups.0: has the options"));
  EXPECT_THAT(error_with([&](StateDict& s) { group(s)["momentums"] = 3; }), HasSubstr("has the options"));
  EXPECT_THAT(error_with([&](StateDict& s) { group(s)["unheard_of"] = true; }), HasSubstr("has the options"));
  EXPECT_THAT(error_with([&](StateDict& s) { group(s)["lr"] = "high"; }),
              HasSubstr("optimizers.0.param_groups.0.lr: is text; a floating-point number was expected"));
  EXPECT_THAT(error_with([&](StateDict& s) { group(s)["lr"] = std::numeric_limits<double>::quiet_NaN(); }),
              HasSubstr("optimizers.0.param_groups.0.lr: is nan; a number was expected"));
  EXPECT_THAT(error_with([&](StateDict& s) { (*s.at("state").get_if<StateDict>())["9"] = StateDict(); }),
              HasSubstr("optimizers.0.state.9: there are only 5 parameters"));
  EXPECT_THAT(error_with([&](StateDict& s) { (*s.at("state").get_if<StateDict>())["0"] = 1; }),
              HasSubstr("optimizers.0.state.0: is a whole number; a dict was expected"));
  if (StateDict copy = snapshot(before); first_moment(copy)) {
    EXPECT_THAT(error_with([](StateDict& s) {
                  *first_moment(s) = at::ones({3, 5});
                }),
                HasSubstr("has shape [3, 5]"));
    EXPECT_NE(error_with([](StateDict& s) {
                for (auto& [number, entry] : *s.at("state").get_if<StateDict>()) {
                  (*entry.template get_if<StateDict>())["unheard_of"] = at::ones({});
                }
              }),
              "no error");
    EXPECT_NE(error_with([](StateDict& s) {
                for (auto& [number, entry] : *s.at("state").get_if<StateDict>()) {
                  (*entry.template get_if<StateDict>())["step"] = "many";
                }
              }),
              "no error");
    const StateValue impossible[] = {at::scalar_tensor(-1.0),
                                     at::scalar_tensor(std::numeric_limits<double>::quiet_NaN()),
                                     at::ones({2}), std::numeric_limits<int64_t>::max(), -1};
    for (const StateValue& value : impossible)
      EXPECT_THAT(error_with([&](StateDict& s) {
                    for (auto& [number, entry] : *s.at("state").get_if<StateDict>())
                      (*entry.template get_if<StateDict>())["step"] = value;
                  }),
                  HasSubstr(".step: is "));
  }
}

INSTANTIATE_TEST_SUITE_P(EveryKind, OptimizerState, testing::ValuesIn(kinds()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(OptimizerStateOf, LbfgsContinuesBitForBit) {
  for (const bool wolfe : {false, true}) {
    const auto make = [&](const at::Tensor& x) {
      auto options = torch::optim::LBFGSOptions(0.5).max_iter(3).history_size(4);
      if (wolfe) options.line_search_fn("strong_wolfe");
      return std::make_unique<torch::optim::LBFGS>(std::vector<at::Tensor>{x}, options);
    };
    const auto step = [](torch::optim::LBFGS& optimizer, const at::Tensor& x) {
      optimizer.step([&] {
        optimizer.zero_grad();
        const at::Tensor loss = (x.pow(4) - x.pow(2) + 0.3 * x).sum() + x.prod();
        loss.backward();
        return loss;
      });
    };
    const at::Tensor x = at::tensor({1.5, -0.7, 0.2}, at::kDouble).set_requires_grad(true);
    const auto optimizer = make(x);
    for (int i = 0; i < 3; ++i) step(*optimizer, x);
    const at::Tensor y = x.detach().clone().set_requires_grad(true);
    const StateDict saved = snapshot(optimizer_state(*optimizer));
    const auto resumed = make(y);
    load_optimizer_state(*resumed, StateReader(saved));
    EXPECT_EQ(difference(optimizer_state(*resumed), saved), "");
    for (int i = 0; i < 3; ++i) {
      step(*optimizer, x);
      step(*resumed, y);
    }
    EXPECT_TRUE(at::equal(x, y));
    EXPECT_EQ(difference(optimizer_state(*resumed), optimizer_state(*optimizer)), "");
  }
}

TEST(OptimizerStateOf, LooksAsPythonsDoes) {
  const at::Tensor a = at::ones({2}).set_requires_grad(true), b = at::ones({3}).set_requires_grad(true);
  AdamW optimizer(std::vector<OptimizerParamGroup>{OptimizerParamGroup({a}), OptimizerParamGroup({b})});
  a.mutable_grad() = at::ones({2});
  optimizer.step();
  const StateDict state = optimizer_state(optimizer);
  EXPECT_EQ(state.size(), 2u) << "nothing else beside state and param_groups";
  const StateReader reader(state);
  EXPECT_EQ(reader.at("state").size(), 1u);
  EXPECT_EQ(reader.at("state").at("0").at("step").to_tensor().item<float>(), 1);
  EXPECT_EQ(reader.at("param_groups").at(0).at("betas").at(1).to_double(), 0.999);
  EXPECT_EQ(reader.at("param_groups").at(1).at("params").at(0).to_int(), 1);
}

// libtorch's Module::parameters() lists a tied weight once for each module that holds it.
TEST(OptimizerStateOf, ATiedWeightHasOneNumber) {
  const at::Tensor tied = at::ones({2}).set_requires_grad(true),
                   other = at::ones({2}).set_requires_grad(true);
  const auto make = [&] {
    return std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{tied, other, tied},
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  };
  const auto optimizer = make();
  tied.mutable_grad() = at::ones({2});
  optimizer->step();
  const StateDict state = snapshot(optimizer_state(*optimizer));
  EXPECT_EQ(difference({{"p", StateReader(state).at("param_groups").at(0).at("params").to_list()}},
                       {{"p", StateList{0, 1, 0}}}),
            "");
  const auto resumed = make();
  load_optimizer_state(*resumed, StateReader(state));
  EXPECT_EQ(difference(optimizer_state(*resumed), state), "");
}

TEST(OptimizerStateOf, FusedAndUnfusedTakeEachOthers) {
  const at::Tensor p = at::ones({4}).set_requires_grad(true);
  Adam plain({p});
  FusedAdam fused({p}, {}, {.stochastic_rounding = true, .seed = 3});
  p.mutable_grad() = at::ones({4});
  plain.step();
  load_optimizer_state(fused, StateReader(snapshot(optimizer_state(plain))));
  const StateDict state = snapshot(optimizer_state(fused));
  EXPECT_EQ(StateReader(state).at("stochastic_rounding_seed").to_int(), 3);
  load_optimizer_state(plain, StateReader(state));
}

TEST(OptimizerStateOf, AnOptionThatIsOffNeedNotBeKnown) {
  const Net net(at::kFloat);
  AdamW ours(net.groups(), AdamWOptions(0.01));
  torch::optim::AdamW libtorchs(net.groups(), torch::optim::AdamWOptions(0.5));
  load_optimizer_state(libtorchs, StateReader(optimizer_state(ours)));
  EXPECT_EQ(libtorchs.param_groups()[0].options().get_lr(), 0.01);
  EXPECT_NE(error_of([&] { load_optimizer_state(ours, StateReader(optimizer_state(libtorchs))); }),
            "no error");
}

TEST(OptimizerStateOf, AnOptimizerThatWritesNothingIsRefused) {
  struct Mute : Optimizer {
    Mute() : Optimizer(std::vector<at::Tensor>{}, std::make_unique<torch::optim::SGDOptions>(0.1)) {}
    at::Tensor step(LossClosure) override { return {}; }
  };
  EXPECT_THAT(error_of([] { optimizer_state(Mute()); }),
              HasSubstr("this optimizer's save() writes no state"));
}

TEST(OptimizerStateOf, StateFollowsItsParameterToCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  for (const Kind& kind : kinds()) {
    const at::Tensor p = at::ones({4}, at::dtype(kind.dtype).device(at::kCUDA)).set_requires_grad(true);
    const auto optimizer = kind.make({OptimizerParamGroup({p})});
    p.mutable_grad() = at::ones_like(p);
    optimizer->step();
    const StateDict saved = snapshot(optimizer_state(*optimizer));
    const auto step = [&](const StateDict& state) {
      const at::Tensor q = p.detach().clone().set_requires_grad(true);
      const auto other = kind.make({OptimizerParamGroup({q})});
      load_optimizer_state(*other, StateReader(state));
      q.mutable_grad() = at::ones_like(q);
      other->step();
      return q.detach().cpu();
    };
    const at::Tensor resumed = step(saved);
    p.mutable_grad() = at::ones_like(p);
    optimizer->step();
    EXPECT_TRUE(at::equal(resumed, p.detach().cpu())) << kind.name;
  }
}

TEST(OwnParameters, AreThoseThatNothingElseKeeps) {
  torch::nn::Linear model(3, 2);
  const auto is_of_model = [&](const at::Tensor& parameter) {
    return parameter.is_same(model->weight) || parameter.is_same(model->bias);
  };
  const auto make = [&](double temperature) {
    std::vector<at::Tensor> parameters = model->parameters();
    auto optimizer = std::make_unique<SGD>(parameters, SGDOptions(0.1));
    EXPECT_TRUE(own_parameters(*optimizer, is_of_model).empty());
    optimizer->add_param_group(
        torch::optim::OptimizerParamGroup({at::full({2, 3}, temperature).set_requires_grad(true)}));
    return optimizer;
  };
  const auto optimizer = make(1), resumed = make(2);
  const StateDict saved = snapshot(own_parameters(*optimizer, is_of_model));
  EXPECT_EQ(saved.size(), 1u);
  EXPECT_TRUE(saved.contains("2"));
  EXPECT_NE(difference(saved, own_parameters(*resumed, is_of_model)), "");
  load_own_parameters(*resumed, is_of_model, StateReader(saved));
  EXPECT_EQ(difference(saved, own_parameters(*resumed, is_of_model)), "");
  EXPECT_TRUE(resumed->param_groups()[1].params()[0].requires_grad());

  const auto error = [&](const StateDict& state) {
    return error_of([&] { load_own_parameters(*resumed, is_of_model, StateReader(state, "own")); });
  };
  EXPECT_THAT(error({}), HasSubstr("own: there are 0 parameters of the optimizer's own, and it has 1"));
  EXPECT_THAT(error({{"2", at::ones({2})}}), HasSubstr("own.2: is Float[2]; Float[2, 3] was expected"));
  EXPECT_THAT(error({{"2", at::ones({2, 3}, at::kDouble)}}), HasSubstr("own.2: is Double[2, 3]"));
  EXPECT_EQ(difference(saved, own_parameters(*resumed, is_of_model)), "");
}

}  // namespace
}  // namespace mantissa::optimizer_state_test
