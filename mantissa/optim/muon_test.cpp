#include "mantissa/optim/muon.h"

#include "mantissa/core/test_support_internal.h"
#include "mantissa/optim/adamw.h"
#include "mantissa/optim/bitsandbytes_state.h"
#include "mantissa/optim/blockwise.h"
#include "mantissa/optim/optimizer_state.h"
#include "mantissa/optim/registry.h"
#include "mantissa/optim/test_support_internal.h"

namespace mantissa::muon_test {
namespace {

using testing::HasSubstr;
using torch::optim::OptimizerParamGroup;
using Groups = std::vector<OptimizerParamGroup>;
using Tensors = std::vector<at::Tensor>;

at::Tensor matrix(int64_t rows, int64_t columns, at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(6);
  return at::randn({rows, columns}).to(dtype).set_requires_grad(true);
}

OptimizerParamGroup group(Tensors parameters, const MuonOptions& options) {
  return {std::move(parameters), std::make_unique<MuonOptions>(options)};
}

TEST(NewtonSchulz, SingularValuesEndNearOne) {
  for (const auto& [rows, columns] : {std::pair{48, 48}, {64, 24}, {24, 64}, {1, 5}, {5, 1}}) {
    const at::Tensor x = matrix(rows, columns).detach() * 100;
    const at::Tensor orthogonal = zeropower_via_newtonschulz(x);
    EXPECT_EQ(orthogonal.scalar_type(), at::kBFloat16);
    ASSERT_EQ(orthogonal.sizes(), x.sizes());
    const at::Tensor values = at::linalg_svdvals(orthogonal.to(at::kFloat));
    EXPECT_LT(values.max().item<float>(), 1.3F);
    // The smallest value of a random square matrix needs more steps.
    EXPECT_GT(values[values.numel() * 3 / 4].item<float>(), 0.6F) << rows << " x " << columns;
    // It turns no direction: both are symmetric and positive beside the same rotation.
    EXPECT_GT((orthogonal.to(at::kFloat) * x).sum().item<float>(), 0);
  }
}

constexpr std::pair<int64_t, int64_t> kShapes[] = {{24, 24}, {12, 40}, {40, 12}, {1, 7}, {7, 1}};

/// The definition in double: the polynomial of each step is that of the singular values.
at::Tensor by_singular_values(const at::Tensor& matrix, const NewtonSchulzCoefficients& coefficients,
                              int64_t steps) {
  const auto [a, b, c] = coefficients;
  const auto [u, s, v] = at::linalg_svd(matrix.to(at::kDouble), /*full_matrices=*/false);
  at::Tensor values = s / s.norm();
  for (int64_t step = 0; step < steps; ++step) values = a * values + b * values.pow(3) + c * values.pow(5);
  return (u * values).matmul(v);
}

TEST(NewtonSchulz, EachStepAppliesItsPolynomialToTheSingularValues) {
  for (const auto& [rows, columns] : kShapes) {
    for (const NewtonSchulzCoefficients& coefficients : {kMuonCoefficients, {2, -1.5, 0.5}}) {
      for (const int64_t steps : {0, 1, 2, 3, 5}) {
        const at::Tensor x = matrix(rows, columns).detach() * 100,
                         want = by_singular_values(x, coefficients, steps),
                         got = zeropower_via_newtonschulz(x, coefficients, steps).to(at::kDouble);
        ASSERT_EQ(got.sizes(), x.sizes());
        const double error = ((got - want).norm() / want.norm()).item<double>();
        EXPECT_LT(error, 0.05) << rows << " x " << columns << ", " << steps << " steps";
      }
    }
  }
}

// torch/optim/_muon.py. The products of a tall matrix are those of its transpose, and round otherwise than its own.
TEST(NewtonSchulz, HasTheBitsOfTorchsOperations) {
  const auto [a, b, c] = kMuonCoefficients;
  for (const auto& [rows, columns] : kShapes) {
    const at::Tensor x = matrix(rows, columns).detach();
    at::Tensor ortho = x.to(at::kBFloat16);
    if (rows > columns) ortho = ortho.t();
    ortho = ortho / ortho.norm().clamp_min(1e-7);
    for (int step = 0; step < 5; ++step) {
      const at::Tensor gram = ortho.matmul(ortho.t());
      ortho = at::addmm(ortho, at::addmm(gram, gram, gram, b, c), ortho, a);
    }
    if (rows > columns) ortho = ortho.t();
    EXPECT_TRUE(at::equal(zeropower_via_newtonschulz(x), ortho)) << rows << " x " << columns;
  }
}

TEST(NewtonSchulz, ZerosAndEmptyMatricesStayAndErrorsNameTheCure) {
  EXPECT_TRUE(at::equal(zeropower_via_newtonschulz(at::zeros({4, 3})), at::zeros({4, 3}, at::kBFloat16)));
  EXPECT_EQ(zeropower_via_newtonschulz(at::zeros({0, 3})).sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(zeropower_via_newtonschulz(at::zeros({3, 0})).sizes(), at::IntArrayRef({3, 0}));
  EXPECT_TRUE(zeropower_via_newtonschulz(at::full({4, 3}, NAN)).isnan().all().item<bool>());
  EXPECT_THAT(value_error([] { zeropower_via_newtonschulz(at::zeros({4})); }),
              HasSubstr("has the shape [4]; give it a matrix"));
  for (const int64_t steps : {-1, 100})
    EXPECT_THAT(value_error([&] {
                  zeropower_via_newtonschulz(at::zeros({4, 4}), kMuonCoefficients, steps);
                }),
                HasSubstr(std::to_string(steps) + " steps are not from 0 to 99"));
}

/// A step as the class documents it.
void take_reference_step(at::Tensor& p, at::Tensor& momentum, const at::Tensor& g, const MuonOptions& o) {
  momentum = momentum * o.momentum() + g * (1 - o.momentum());
  const at::Tensor mix = o.nesterov() ? g * (1 - o.momentum()) + momentum * o.momentum() : momentum;
  const auto rows = static_cast<double>(p.size(0)), columns = static_cast<double>(p.size(1));
  const double factor = o.adjust_lr_fn() == "match_rms_adamw" ? 0.2 * std::sqrt(std::max(rows, columns))
                                                              : std::sqrt(std::max(1.0, rows / columns));
  const at::Tensor direction =
      zeropower_via_newtonschulz(mix, o.ns_coefficients(), o.ns_steps(), o.eps()).to(at::kFloat);
  p = p * (1 - o.lr() * o.weight_decay()) - direction * (o.lr() * factor);
}

TEST(Muon, FollowsItsFormula) {
  const MuonOptions cases[] = {MuonOptions(0.02), MuonOptions(0.02).nesterov(false).momentum(0.5),
                               MuonOptions(0.02).adjust_lr_fn("match_rms_adamw").weight_decay(0),
                               MuonOptions(0.02).momentum(0).ns_steps(3).adjust_lr_fn("original"),
                               MuonOptions(0.02).ns_coefficients({2, -1.5, 0.5}).eps(1e-3)};
  for (const MuonOptions& options : cases) {
    for (const auto& [rows, columns] : {std::pair{40, 24}, {24, 40}}) {
      const at::Tensor p = matrix(rows, columns);
      at::Tensor want = p.detach().clone(), momentum = at::zeros({rows, columns});
      Muon optimizer({p}, options);
      for (int64_t step = 0; step < 4; ++step) {
        const at::Tensor g = noise(step, p.sizes(), at::kFloat);
        p.mutable_grad() = g.clone();
        optimizer.step();
        take_reference_step(want, momentum, g, options);
      }
      // The sums of bf16 products may round the other way where the momentum differs in its last bit.
      EXPECT_LT((p - want).abs().max().item<float>(), 4 * 0.02F * 0.02F) << rows;
      EXPECT_GT((p - matrix(rows, columns)).abs().mean().item<float>(), 0.004F) << rows;
    }
  }
}

TEST(Muon, OtherParametersAreSteppedByAdamW) {
  const at::Tensor p = matrix(8, 6), bias = matrix(1, 6).view(-1).detach().set_requires_grad(true),
                   embedding = matrix(10, 5), other_bias = twin(bias), other_embedding = twin(embedding);
  const MuonOptions options = MuonOptions(0.01).weight_decay(0.1).betas({0.8, 0.95}).eps(1e-6);
  Muon muon(Groups{group({p}, options), group({bias, embedding}, MuonOptions(options).use_muon(false))});
  AdamW adamw({other_bias, other_embedding},
              AdamWOptions(AdamOptions(0.01).weight_decay(0.1).betas({0.8, 0.95}).eps(1e-6)));
  take_noisy_steps(muon, 0, 6);
  take_noisy_steps(adamw, 0, 6);
  // AdamW of the block-wise kernels shrinks after the step, not before: lr^2 * weight_decay apart.
  EXPECT_LT((bias - other_bias).abs().max().item<float>(), 6 * 1e-5F + 1e-6F);
  EXPECT_LT((embedding - other_embedding).abs().max().item<float>(), 6 * 1e-5F + 1e-6F);
  EXPECT_GT((bias - matrix(1, 6).view(-1)).abs().max().item<float>(), 0.02F);
}

TEST(Muon, RefusesWhatIsNoMatrixAndOptionsOutOfRange) {
  const at::Tensor p = matrix(3, 4), bias = at::zeros({3}).set_requires_grad(true);
  EXPECT_THAT(
      value_error([&] {
        Muon({p, bias});
      }),
      HasSubstr("Muon only supports 2D parameters, and one has the shape [3]; put it into a group with "
                "use_muon(false)"));
  EXPECT_THAT(value_error([&] { Muon8bit({bias}); }), HasSubstr("Muon8bit only supports 2D parameters"));
  Muon added({p});
  added.add_param_group(OptimizerParamGroup({bias}));
  EXPECT_THAT(value_error([&] { take_noisy_steps(added, 0, 1); }), HasSubstr("only supports 2D parameters"));
  EXPECT_TRUE(at::equal(p, matrix(3, 4)));
  const auto error_with = [&](const MuonOptions& options) {
    return value_error([&] { Muon({p}, options); });
  };
  EXPECT_THAT(error_with(MuonOptions(-1)), HasSubstr("Muon: learning rate -1 is invalid"));
  EXPECT_THAT(error_with(MuonOptions().momentum(NAN)), HasSubstr("momentum nan is invalid"));
  EXPECT_THAT(error_with(MuonOptions().momentum(1.5)), HasSubstr("momentum lies in [0, 1]"));
  EXPECT_EQ(error_with(MuonOptions().momentum(1)), "no ValueError");
  EXPECT_THAT(error_with(MuonOptions().weight_decay(-1)), HasSubstr("weight_decay -1 is invalid"));
  EXPECT_THAT(error_with(MuonOptions().ns_steps(100)), HasSubstr("ns_steps 100 is invalid"));
  EXPECT_THAT(error_with(MuonOptions().eps(-1)), HasSubstr("eps -1 is invalid"));
  EXPECT_THAT(error_with(MuonOptions().betas({1, 0})), HasSubstr("first beta 1 is invalid"));
  EXPECT_THAT(error_with(MuonOptions().ns_coefficients({1, INFINITY, 0})), HasSubstr("must be finite"));
  EXPECT_THAT(error_with(MuonOptions().adjust_lr_fn("rms")),
              HasSubstr("adjust_lr_fn rms is invalid; choose"));
  const at::Tensor wide = at::ones({3, 3}, at::kDouble).set_requires_grad(true);
  Muon of_doubles({wide});
  EXPECT_THROW(take_noisy_steps(of_doubles, 0, 1), c10::TypeError);
}

/// The matrices are stepped by Muon, and the rest by AdamW.
std::unique_ptr<Muon> make_of(const std::string& name, Tensors matrices, Tensors rest, bool rounds = false,
                              uint64_t seed = 5) {
  const MuonOptions options = MuonOptions(0.02);
  Groups groups = {group(std::move(matrices), options)};
  if (!rest.empty()) groups.push_back(group(std::move(rest), MuonOptions(options).use_muon(false)));
  if (name == "Muon")
    return std::make_unique<Muon>(groups, options, FusedOptions{.stochastic_rounding = rounds, .seed = seed});
  const LowBitOptions all = {.min_8bit_size = 100, .stochastic_rounding = rounds, .seed = seed};
  return std::make_unique<Muon8bit>(groups, options, all);
}

class EveryMuon : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Bits, EveryMuon, testing::Values("Muon", "Muon8bit"),
                         [](const auto& info) { return info.param; });

TEST_P(EveryMuon, AStepOfTheScalerDividesOrChangesNothing) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto parameters = [&] {
      return std::pair{matrix(20, 30, dtype),
                       matrix(1, 300, dtype).view(-1).detach().set_requires_grad(true)};
    };
    const auto [p, bias] = parameters();
    const auto [q, other_bias] = parameters();
    const auto plain = make_of(GetParam(), {p}, {bias}, true),
               scaled = make_of(GetParam(), {q}, {other_bias}, true);
    for (int64_t step = 0; step < 3; ++step) {
      for (const auto& [one, two] : {std::pair{p, q}, {bias, other_bias}}) {
        one.mutable_grad() = noise(step, one.sizes(), dtype);
        two.mutable_grad() = noise(step, one.sizes(), dtype) * 4;
      }
      scaled->grad_scale = at::full({}, 4.0), scaled->found_inf = at::zeros({});
      plain->step();
      scaled->step();
      EXPECT_TRUE(at::equal(q.grad(), p.grad())) << "the gradients are unscaled afterwards";
    }
    EXPECT_TRUE(at::equal(q, p)) << dtype;
    EXPECT_TRUE(at::equal(other_bias, bias)) << dtype;
    const StateDict before = snapshot(optimizer_state(*scaled));
    q.mutable_grad().fill_(INFINITY), other_bias.mutable_grad().fill_(NAN);
    scaled->found_inf = at::ones({});
    scaled->step();
    EXPECT_TRUE(at::equal(q, p));
    const StateDict after = optimizer_state(*scaled);
    EXPECT_EQ(difference({{"s", after.at("state")}}, {{"s", before.at("state")}}), "");
  }
}

TEST_P(EveryMuon, ASavedStateContinuesBitForBit) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool by_file : {true, false}) {
      // A transposed matrix, a small one, and parameters of AdamW.
      const auto make_net = [&] {
        Tensors net = {matrix(30, 20, dtype).detach().t(), matrix(4, 5, dtype).detach(),
                       matrix(6, 50, dtype).view({6, 5, 10}).detach(), at::zeros({7}, dtype)};
        for (at::Tensor& each : net) each.set_requires_grad(true);
        return net;
      };
      const auto make = [&](const Tensors& net, uint64_t seed) {
        return make_of(GetParam(), {net[0], net[1]}, {net[2], net[3]}, true, seed);
      };
      const Tensors straight_net = make_net(), net = make_net();
      const auto straight = make(straight_net, 5), stopped = make(net, 5), resumed = make(net, 99);
      take_noisy_steps(*straight, 0, 6);
      take_noisy_steps(*stopped, 0, 3);
      if (by_file) {
        save_and_load(*stopped, *resumed);
      } else {
        load_optimizer_state(*resumed, StateReader(snapshot(optimizer_state(*stopped))));
      }
      take_noisy_steps(*resumed, 3, 6);
      for (size_t i = 0; i < net.size(); ++i) EXPECT_TRUE(at::equal(net[i], straight_net[i])) << dtype << i;
      EXPECT_EQ(difference(optimizer_state(*resumed), optimizer_state(*straight)), "");
      EXPECT_FALSE(net[0].is_contiguous());
    }
  }
}

TEST_P(EveryMuon, DoesNotDependOnTheThreads) {
  const int threads = at::get_num_threads();
  Tensors seen;
  for (const int count : {1, 2}) {
    at::set_num_threads(count);
    const at::Tensor p = matrix(96, 160);
    const auto optimizer = make_of(GetParam(), {p}, {});
    take_noisy_steps(*optimizer, 0, 3);
    seen.push_back(p.detach());
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(seen[0], seen[1]));
}

TEST_P(EveryMuon, StochasticRoundingKeepsSmallUpdates) {
  const auto train = [&](bool rounds) {
    const at::Tensor p = at::ones({32, 32}, at::kBFloat16).set_requires_grad(true);
    const auto optimizer = make_of(GetParam(), {p}, {}, rounds);
    static_cast<MuonOptions&>(optimizer->param_groups()[0].options()).lr(1e-3).weight_decay(0);
    for (int64_t step = 0; step < 20; ++step) {
      p.mutable_grad() = noise(step % 2, p.sizes(), at::kBFloat16);
      optimizer->step();
    }
    return p.to(at::kDouble);
  };
  EXPECT_TRUE(at::equal(train(false), at::ones({32, 32}, at::kDouble))) << "each update is below half an ulp";
  EXPECT_GT((train(true) - 1).abs().mean().item<double>(), 1e-3);
}

// As in torch: the product of matrices spreads a nan, so that it cannot stay at its element.
TEST_P(EveryMuon, ANanInTheGradientMakesTheMatrixNanAndTheRestStays) {
  const at::Tensor p = matrix(20, 10), q = matrix(20, 10);
  const auto optimizer = make_of(GetParam(), {p, q}, {});
  p.mutable_grad() = noise(0, p.sizes(), at::kFloat);
  q.mutable_grad() = noise(0, p.sizes(), at::kFloat);
  p.mutable_grad()[3][3] = NAN;
  optimizer->step();
  EXPECT_TRUE(p.isnan().all().item<bool>());
  EXPECT_TRUE(q.isfinite().all().item<bool>());
}

TEST_P(EveryMuon, LoadsNoStateOfAnotherOptimizer) {
  const at::Tensor p = matrix(20, 10), q = twin(p);
  const auto muon = make_of(GetParam(), {p}, {});
  AdamW adamw({q});
  take_noisy_steps(*muon, 0, 1);
  take_noisy_steps(adamw, 0, 1);
  const StateDict before = snapshot(optimizer_state(*muon));
  EXPECT_THAT(value_error([&] { save_and_load(adamw, *muon); }), HasSubstr("::load: the file is of"));
  EXPECT_THAT(error_of([&] { load_optimizer_state(*muon, StateReader(optimizer_state(adamw))); }),
              HasSubstr("has the options"));
  const auto other_bits = make_of(GetParam() == "Muon" ? "Muon8bit" : "Muon", {q}, {});
  take_noisy_steps(*other_bits, 0, 1);
  EXPECT_THAT(error_of([&] { load_optimizer_state(*muon, StateReader(optimizer_state(*other_bits))); }),
              HasSubstr("momentum_buffer"));
  EXPECT_EQ(difference(optimizer_state(*muon), before), "");
  EXPECT_THAT(value_error([&] { bitsandbytes_state(*muon); }), HasSubstr("bitsandbytes has no optimizer"));
}

TEST(Muon, ItsStateHasTorchsNames) {
  const at::Tensor p = matrix(6, 4), bias = at::zeros({4}).set_requires_grad(true);
  const auto optimizer = make_of("Muon", {p}, {bias});
  take_noisy_steps(*optimizer, 0, 2);
  const StateDict state = optimizer_state(*optimizer);
  const StateReader states = StateReader(state).at("state");
  EXPECT_EQ(states.at("0").to_dict().size(), 1U);
  EXPECT_EQ(states.at("0").at("momentum_buffer").to_tensor().sizes(), p.sizes());
  for (const char* name : {"step", "exp_avg", "exp_avg_sq"}) EXPECT_TRUE(states.at("1").find(name)) << name;
  const StateReader options = StateReader(state).at("param_groups").at(0);
  EXPECT_EQ(options.at("ns_steps").to_int(), 5);
  EXPECT_TRUE(options.at("adjust_lr_fn").is_null());
}

TEST(Muon, OverridesChangeOneMatrix) {
  const at::Tensor p = matrix(20, 10), q = matrix(20, 10), plain = matrix(20, 10), still = matrix(20, 10);
  const auto optimizer = make_of("Muon", {p, q, still}, {}), one = make_of("Muon", {plain}, {});
  optimizer->override_config(q, {.lr = 0.5, .beta1 = 0.5});
  optimizer->override_config(still, {.lr = 0});
  EXPECT_THAT(value_error([&] { optimizer->override_config(q, {.optim_bits = 8}); }),
              testing::EndsWith("optim_bits 8 is invalid; choose 32"));
  take_noisy_steps(*optimizer, 0, 2);
  take_noisy_steps(*one, 0, 2);
  EXPECT_TRUE(at::equal(p, plain));
  EXPECT_FALSE(at::equal(q, plain));
  EXPECT_TRUE(at::equal(still, matrix(20, 10)));
}

TEST(Muon8bit, FollowsMuonWithinTheErrorOfItsCodes) {
  const at::Tensor few_bits = matrix(64, 80), many_bits = matrix(64, 80), start = matrix(64, 80);
  const auto eight = make_of("Muon8bit", {few_bits}, {}), wide = make_of("Muon", {many_bits}, {});
  EXPECT_EQ(eight->optim_bits(few_bits), 8);
  take_noisy_steps(*eight, 0, 10);
  take_noisy_steps(*wide, 0, 10);
  const at::Tensor moved = (many_bits - start).abs().mean(), error = (few_bits - many_bits).abs().mean();
  EXPECT_GT(error.item<float>(), 0);
  EXPECT_LT(error.item<float>(), 0.05F * moved.item<float>());
}

TEST(Muon8bit, AnOverrideKeepsAMatrixIn32Bits) {
  const at::Tensor p = matrix(64, 80), q = matrix(64, 80);
  const auto eight = make_of("Muon8bit", {p}, {}), wide = make_of("Muon", {q}, {});
  eight->override_config(p, {.optim_bits = 32});
  take_noisy_steps(*eight, 0, 3);
  take_noisy_steps(*wide, 0, 3);
  EXPECT_TRUE(at::equal(p, q));
}

/// Counts the bytes of every tensor of a state.
int64_t bytes_in(const StateValue& value) {
  if (const auto* const tensor = value.get_if<at::Tensor>()) return static_cast<int64_t>(tensor->nbytes());
  int64_t bytes = 0;
  if (const auto* const dict = value.get_if<StateDict>())
    for (const auto& [name, item] : *dict) bytes += bytes_in(item);
  return bytes;
}

TEST(Muon8bit, StateIs70PercentSmallerThanThatOfAdamW) {
  struct Gpt : torch::nn::Module {
    explicit Gpt(int64_t width = 256) {
      embedding = register_module("embedding", torch::nn::Embedding(256, width));
      for (const char* name : {"a", "b"}) {
        register_module(std::string("norm_") + name,
                        torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
        register_module(std::string("expand_") + name, torch::nn::Linear(width, 4 * width));
        register_module(std::string("contract_") + name, torch::nn::Linear(4 * width, width));
      }
    }
    torch::nn::Embedding embedding{nullptr};
  };
  const auto bytes_of = [](const char* name) {
    const Gpt net;
    const auto optimizer = make_optimizer(name, net);
    take_noisy_steps(*optimizer, 0, 1);
    return static_cast<double>(bytes_in(optimizer_state(*optimizer).at("state")));
  };
  const double adamw = bytes_of("adamw"), muon8bit = bytes_of("muon8bit"), muon = bytes_of("muon");
  EXPECT_LE(muon8bit, 0.3 * adamw);
  EXPECT_LE(muon, 0.6 * adamw);
  const at::Tensor p = matrix(256, 256);
  Muon8bit optimizer({p});
  take_noisy_steps(optimizer, 0, 1);
  EXPECT_EQ(bytes_in(optimizer_state(optimizer).at("state")), 256 * 256 + 256 * 4);
}

}  // namespace
}  // namespace mantissa::muon_test
