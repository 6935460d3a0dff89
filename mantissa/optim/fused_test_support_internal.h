// Every fused optimizer with states of 32 and of 8 bits, for tests that all of them have to pass.
#pragma once

#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/optim/fused_adagrad.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/optim/fused_optimizer.h"
#include "mantissa/optim/fused_sgd.h"
#include "mantissa/optim/muon.h"
#include "mantissa/optim/optimizers_8bit.h"

namespace mantissa::fused_test {

using torch::optim::OptimizerParamGroup;
using Groups = std::vector<OptimizerParamGroup>;

inline const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<FusedOptimizer>(const Groups&, const FusedOptions&)> make;
  std::vector<at::ScalarType> dtypes = kDtypes;
};

/// Prints a Kind for gtest, which would otherwise print its bytes with pointers.
inline void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

template <typename Optimizer, typename Options>
Kind kind(const std::string& name, const Options& options) {
  return {name, [options](const Groups& groups, const FusedOptions& fused) {
            return std::make_unique<Optimizer>(groups, options, fused);
          }};
}

/// All states have 8 bits, except those of parameters with fewer than nine elements.
template <typename Optimizer, typename Options>
Kind kind_8bit(const std::string& name, const Options& options) {
  const auto make = [options](const Groups& groups, const FusedOptions& fused) {
    const LowBitOptions all = {
        .min_8bit_size = 9, .stochastic_rounding = fused.stochastic_rounding, .seed = fused.seed};
    return std::make_unique<Optimizer>(groups, options, all);
  };
  return {name, make, {at::kFloat, at::kBFloat16, at::kHalf}};
}

inline const std::vector<Kind> kKinds = {
    kind<FusedAdam>("FusedAdam", AdamOptions(0.01).weight_decay(0.1)),
    kind<FusedAdamW>("FusedAdamW", AdamWOptions(AdamOptions(0.01).amsgrad(true).maximize(true))),
    kind<FusedSGD>("FusedSGD", SGDOptions(0.01)),
    kind<FusedSGD>("FusedSGDMomentum", SGDOptions(0.01).momentum(0.9).weight_decay(0.1).nesterov(true)),
    kind<FusedSGD>("FusedSGDDampening", SGDOptions(0.01).momentum(0.9).dampening(0.5).maximize(true)),
    kind<FusedAdagrad>("FusedAdagrad",
                       AdagradOptions(0.01).lr_decay(0.1).weight_decay(0.1).initial_accumulator_value(0.5)),
    kind_8bit<Adam8bit>("Adam8bit", AdamOptions(0.01).maximize(true)),
    kind_8bit<AdamW8bit>("AdamW8bit", AdamWOptions(0.01)),
    kind_8bit<Lion8bit>("Lion8bit", LionOptions(0.01).weight_decay(0.1)),
    kind_8bit<SGD8bit>("SGD8bit", SGDOptions(0.01).momentum(0.9).weight_decay(0.1)),
    kind_8bit<RMSprop8bit>("RMSprop8bit", torch::optim::RMSpropOptions(0.01).weight_decay(0.1)),
    kind_8bit<Adagrad8bit>("Adagrad8bit", AdagradOptions(0.01).weight_decay(0.1)),
    kind_8bit<Muon8bit>("AdamWOfMuon8bit", MuonOptions(0.01).use_muon(false)),
};
inline const FusedOptions kRounding = {.stochastic_rounding = true, .seed = 17};

/// Returns the weight and everything that a later step depends on.
inline std::vector<at::Tensor> everything(const FusedOptimizer& optimizer, const at::Tensor& parameter) {
  std::vector<at::Tensor> all{parameter.detach().clone()};
  for (const auto& [key, state] : optimizer.state()) {
    if (const auto* adam = dynamic_cast<const AdamParamState*>(state.get())) {
      all.insert(all.end(), {adam->step(), adam->exp_avg(), adam->exp_avg_sq()});
      if (adam->max_exp_avg_sq().defined()) all.push_back(adam->max_exp_avg_sq());
    } else if (const auto* state_8bit = dynamic_cast<const LowBitParamState*>(state.get())) {
      for (const at::Tensor& tensor : {state_8bit->step(), state_8bit->state1(), state_8bit->absmax1(),
                                       state_8bit->state2(), state_8bit->absmax2()})
        if (tensor.defined()) all.push_back(tensor);
    } else if (const auto* muon = dynamic_cast<const MuonParamState*>(state.get())) {
      for (const at::Tensor& tensor : {muon->step(), muon->exp_avg(), muon->exp_avg_absmax(),
                                       muon->exp_avg_sq(), muon->exp_avg_sq_absmax()})
        if (tensor.defined()) all.push_back(tensor);
    } else if (const auto* sgd = dynamic_cast<const SGDParamState*>(state.get())) {
      all.push_back(sgd->momentum_buffer());
    } else {
      const auto& adagrad = dynamic_cast<const AdagradParamState&>(*state);
      all.insert(all.end(), {adagrad.step(), adagrad.sum()});
    }
  }
  for (at::Tensor& tensor : all) tensor = tensor.clone();
  return all;
}

inline void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

/// The tests of one Kind.
class Fused : public testing::TestWithParam<Kind> {
 protected:
  static std::unique_ptr<FusedOptimizer> make(const std::vector<at::Tensor>& parameters,
                                              const FusedOptions& options = {}) {
    return GetParam().make(Groups{OptimizerParamGroup(parameters)}, options);
  }
};

}  // namespace mantissa::fused_test
