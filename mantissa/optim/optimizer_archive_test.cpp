// What optimizer_state() and load() make of the archives that libtorch's optimizers write.
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/optim/adam.h"
#include "mantissa/optim/archive_internal.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/optim/sgd.h"
#include "mantissa/optim/test_support_internal.h"

namespace mantissa::optimizer_archive_test {
namespace {

using testing::HasSubstr;
using torch::optim::LBFGS;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

StateDict& dict_in(StateDict& dict, const std::string& name) { return *dict.at(name).get_if<StateDict>(); }

TEST(OptimizerArchive, TuplesOfWholeNumbersComeBack) {
  using Sizes = std::tuple<int64_t, int64_t, double>;
  const Sizes sizes = {3, -4, 0.5};
  const StateDict state = written_by([&](auto& archive) { archive.write("sizes", c10::IValue(sizes)); });
  EXPECT_EQ(difference(state, {{"sizes", StateList{3, -4, 0.5}}}), "");
  c10::IValue read;
  read_from(state, [&](auto& archive) { archive.read("sizes", read); });
  EXPECT_EQ(read.to<Sizes>(), sizes);
}

TEST(OptimizerArchive, ListsOfNumbersHaveNoForm) {
  EXPECT_THAT(
      error_of([] {
        written_by([](auto& archive) { archive.write("sizes", c10::IValue(std::vector<int64_t>{3, 4})); });
      }),
      HasSubstr("optimizer_state: 'sizes' is a GenericList, which a state does not hold; write a tensor"));
}

/// Writes only one of the two parts of an optimizer's archive.
struct Half : torch::optim::Optimizer {
  explicit Half(const char* part)
      : Optimizer(std::vector<at::Tensor>{}, std::make_unique<SGDOptions>(0.1)), part_(part) {}
  at::Tensor step(LossClosure) override { return {}; }
  void save(OutputArchive& archive) const override {
    OutputArchive empty;
    archive.write(part_, empty);
  }

 private:
  const char* part_;
};

TEST(OptimizerArchive, OneWithoutStateOrGroupsIsRefused) {
  for (const char* const part : {"state", "param_groups"})
    EXPECT_THAT(error_of([&] { optimizer_state(Half(part)); }), HasSubstr("save() writes no state")) << part;
}

TEST(OptimizerArchive, AFileThatDoesNotNameAParameterIsRefused) {
  const at::Tensor p = start_parameter(at::kFloat), q = start_parameter(at::kFloat);
  Adam optimizer({p, q});
  take_steps(optimizer, 0, 1);
  const StateDict before = snapshot(optimizer_state(optimizer));
  const auto error_with = [&](const std::function<void(StateDict&)>& change) {
    StateDict file = written_by([&](auto& archive) { optimizer.save(archive); });
    change(dict_in(dict_in(file, "param_groups"), "param_groups/0"));
    const std::string error =
        error_of([&] { read_from(file, [&](auto& archive) { optimizer.load(archive); }); });
    EXPECT_EQ(difference(optimizer_state(optimizer), before), "");
    return error;
  };
  EXPECT_EQ(error_with([](StateDict&) {}), "no error");
  const auto refused = HasSubstr("Adam::load: the file does not name parameter 1 of group 0");
  EXPECT_THAT(error_with([](StateDict& group) { group.erase("params/1"); }), refused);
  EXPECT_THAT(error_with([](StateDict& group) { group.insert_or_assign("params/1", 7); }), refused);
}

/// Notes how the options in the archive are called that it loads.
struct Noting : torch::optim::SGD {
  explicit Noting(const at::Tensor& p) : SGD({p}, torch::optim::SGDOptions(0.1)) {}
  void load(InputArchive& archive) override {
    InputArchive groups, group, options;
    archive.read("param_groups", groups);
    groups.read("param_groups/0", group);
    group.read("options", options);
    names = options.keys();
    SGD::load(archive);
  }
  std::vector<std::string> names;
};

TEST(OptimizerArchive, LoadFindsTheOptionsThatSaveWrote) {
  const at::Tensor p = start_parameter(at::kFloat);
  Noting by_file(p), by_state(p);
  save_and_load(by_file, by_file);
  load_optimizer_state(by_state, StateReader(optimizer_state(by_file)));
  EXPECT_THAT(by_file.names, testing::Contains("momentum"));
  EXPECT_THAT(by_state.names, testing::UnorderedElementsAreArray(by_file.names));
}

TEST(OptimizerArchive, ASeedIsAWholeNumber) {
  FusedSGD optimizer({at::ones({3}, at::kHalf).set_requires_grad(true)}, SGDOptions(0.1),
                     FusedOptions{.stochastic_rounding = true, .seed = 3});
  StateDict state = snapshot(optimizer_state(optimizer));
  state.insert_or_assign("stochastic_rounding_seed", "three");
  EXPECT_THAT(error_of([&] { load_optimizer_state(optimizer, StateReader(state, "optimizers.0")); }),
              HasSubstr("optimizers.0.stochastic_rounding_seed: is text; a whole number was expected"));
}

/// LBFGS keeps its moments as lists of vectors that span all parameters.
struct Lbfgs {
  std::vector<at::Tensor> net = {at::tensor({1.5, -0.7, 0.2}, at::kDouble).set_requires_grad(true),
                                 at::tensor({0.3, 2.0}, at::kDouble).view({1, 2}).set_requires_grad(true)};
  LBFGS optimizer{net, torch::optim::LBFGSOptions(0.5).max_iter(3).history_size(4)};

  void take_steps(int steps) {
    for (int i = 0; i < steps; ++i)
      optimizer.step([&] {
        optimizer.zero_grad();
        const at::Tensor loss = (net[0].pow(4) - net[0].pow(2)).sum() + (net[1] - net[0].prod()).pow(2).sum();
        loss.backward();
        return loss;
      });
  }
};

TEST(OptimizerArchive, MomentsMaySpanAllParameters) {
  Lbfgs straight, resumed;
  straight.take_steps(3);
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < straight.net.size(); ++i) resumed.net[i].copy_(straight.net[i]);
  }
  load_optimizer_state(resumed.optimizer, StateReader(snapshot(optimizer_state(straight.optimizer))));
  straight.take_steps(2);
  resumed.take_steps(2);
  for (size_t i = 0; i < straight.net.size(); ++i)
    EXPECT_TRUE(at::equal(resumed.net[i], straight.net[i])) << i;
}

TEST(OptimizerArchive, EachMomentOfAListHasAShapeThatFits) {
  Lbfgs trained;
  trained.take_steps(3);
  const StateDict before = snapshot(optimizer_state(trained.optimizer));
  const size_t moments = StateReader(before).at("state").at("0").at("old_dirs").size();
  ASSERT_GT(moments, 1U);
  for (size_t i = 0; i < moments; ++i) {
    StateDict state = snapshot(before);
    auto& moment = dict_in(dict_in(state, "state"), "0").at("old_dirs");
    (*moment.get_if<StateList>())[i] = at::ones({4}, at::kDouble);
    EXPECT_THAT(error_of([&] { load_optimizer_state(trained.optimizer, StateReader(state)); }),
                HasSubstr("old_dirs." + std::to_string(i) + ": has shape [4]; its parameter's is [3]"));
    EXPECT_EQ(difference(optimizer_state(trained.optimizer), before), "");
  }
}

TEST(OptimizerArchive, TheFirstParameterMayBeTheOptimizersOwn) {
  const at::Tensor own = at::ones({2}).set_requires_grad(true),
                   of_model = at::ones({3}).set_requires_grad(true);
  const SGD optimizer({own, of_model}, SGDOptions(0.1));
  const StateDict kept =
      own_parameters(optimizer, [&](const at::Tensor& each) { return each.is_same(of_model); });
  EXPECT_EQ(difference(kept, {{"0", own.detach()}}), "");
}

}  // namespace
}  // namespace mantissa::optimizer_archive_test
