#include "mantissa/trace/trace_nonfinite.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <string>

#include <torch/torch.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/amp/grad_scaler.h"
#include "mantissa/core/device.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trace/test_nets_internal.h"

namespace mantissa::nonfinite_trace_test {
namespace {

using namespace nonfinite_test;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// ---- the dtype's range

TEST(TraceNonFinite, NamesTheModuleWhoseProductOverflows) {
  for (const char* mode : {"16-mixed", "16-true"}) {
    Transformer net;
    set(net.mlp[0]->as<torch::nn::Linear>()->weight,
        [](at::Tensor& w) { w.fill_(4e4).select(1, 0).fill_(-6e4); });
    set(net.norm2->bias, [](at::Tensor& b) { b.fill_(3); });
    const auto origin = trace(net, mode);
    ASSERT_TRUE(origin);
    SCOPED_TRACE(origin->to_string());
    EXPECT_TRUE(origin->inside_module);
    EXPECT_EQ(origin->module, "mlp.fc1");
    EXPECT_EQ(origin->result.dtype, at::kHalf);
    EXPECT_EQ(origin->cause, NonFiniteCause::kDtypeRange);
    EXPECT_EQ(origin->finite_in_float32, true);
    EXPECT_THAT(origin->cure, HasSubstr("keep_in_fp32(model, \"mlp.fc1\")"));
    EXPECT_EQ(origin->under_autocast, mode == std::string("16-mixed"));
    EXPECT_THAT(origin->cure, origin->under_autocast
                                  ? testing::StartsWith("keep this module in float32")
                                  : testing::StartsWith("its weights are 16-bit themselves"));
    double largest = 0;
    for (const OperandFacts& input : origin->inputs) largest = std::max(largest, input.max_abs);
    EXPECT_NEAR(largest, 6e4, 20);  // the nearest fp16 value
    EXPECT_FALSE(trace(*std::make_unique<Transformer>(), mode));
  }
  Transformer bf16;
  set(bf16.mlp[0]->as<torch::nn::Linear>()->weight, [](at::Tensor& w) { w.fill_(4e4); });
  EXPECT_FALSE(trace(bf16, "bf16-mixed"));  // the remedy that was suggested
}

TEST(TraceNonFinite, NamesTheCastOfAWeightThatIsTooLarge) {
  Transformer net;
  set(net.qkv->weight, [](at::Tensor& w) { w[5][2] = 1e5; });
  const auto origin = trace(net, "16-mixed");
  ASSERT_TRUE(origin);
  EXPECT_TRUE(origin->by_autocast);
  EXPECT_THAT(origin->to_string(),
              HasSubstr("forward: autocast's cast to Half for aten::matmul in qkv made"));
  EXPECT_THAT(origin->to_string(), HasSubstr("ends at 65504"));
  EXPECT_EQ(origin->module, "qkv");
  EXPECT_EQ(origin->cause, NonFiniteCause::kDtypeRange);
  EXPECT_EQ(origin->result.non_finite, 1);
  ASSERT_EQ(origin->inputs.size(), 1);
  EXPECT_EQ(origin->inputs[0].name, "qkv.weight");
  EXPECT_EQ(origin->inputs[0].max_abs, 1e5);
}

TEST(TraceNonFinite, NamesTheAttentionScoresBetweenTheirModulesAndNotTheMask) {
  Transformer net;
  set(net.qkv->weight, [](at::Tensor& w) { w.mul_(3000); });
  const auto origin = trace(net, "16-mixed");
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->op, "aten::bmm") << origin->to_string();
  EXPECT_FALSE(origin->inside_module);
  EXPECT_EQ(origin->module, "qkv");
  EXPECT_EQ(origin->cause, NonFiniteCause::kDtypeRange);
}

TEST(TraceNonFinite, NamesAGradientThatTheScaleHasMadeTooLarge) {
  Transformer net;
  EXPECT_FALSE(trace(net, "16-mixed", 1024));
  const auto origin = trace(net, "16-mixed", 1e9);
  ASSERT_TRUE(origin);
  SCOPED_TRACE(origin->to_string());
  EXPECT_TRUE(origin->backward);
  EXPECT_EQ(origin->cause, NonFiniteCause::kLossScale);
  EXPECT_EQ(origin->module, "head");
  EXPECT_THAT(origin->cure, HasSubstr("lower the loss scale"));
}

TEST(TraceNonFinite, TellsALossScaleFromValuesThatAreTooLarge) {
  Convnet net;
  const Precision precision("32-true");
  GradScaler scaler(at::kCPU, {.init_scale = 1e38});
  const auto expect = [&](const Fault& of_loss, NonFiniteCause cause, bool backward) {
    const auto origin = trace_nonfinite(net, [&] { return of_loss(net.loss(precision)); });
    ASSERT_TRUE(origin);
    EXPECT_EQ(origin->cause, cause) << origin->to_string();
    EXPECT_EQ(origin->backward, backward) << origin->to_string();
    EXPECT_EQ(origin->cure.find("lower the loss scale") != std::string::npos,
              cause == NonFiniteCause::kLossScale);
  };
  const auto kScale = NonFiniteCause::kLossScale;
  expect([&](const at::Tensor& x) { return scaler.scale(x * 100); }, kScale, false);
  expect([&](const at::Tensor& x) { return scaler.scale(x * 1e-5 * 1e5); }, kScale, true);
  expect([&](const at::Tensor& x) { return scaler.scale((x * 1e4).reshape({1}).to(at::kHalf)); }, kScale,
         false);
  // This is not a scaler, but a plain number of the program.
  expect([](const at::Tensor& x) { return x * 1e30 * 1e30; }, NonFiniteCause::kOverflow, false);
  expect([](const at::Tensor& x) { return x.to(at::kHalf).to(at::kFloat) * 1e6; },
         NonFiniteCause::kDtypeRange, true);
}

TEST(TraceNonFinite, TellsAnOverflowOfFloat32FromAnOperationOutsideItsDomain) {
  Convnet net;
  net.faults["head"] = [](const at::Tensor& x) { return torch::exp(x * 0 + 100); };
  const auto origin = trace(net);
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->op, "aten::exp");
  EXPECT_EQ(origin->cause, NonFiniteCause::kOverflow);
  net.faults["head"] = [](const at::Tensor& x) { return torch::exp(x * 0 + 1000); };
  EXPECT_EQ(trace(net).value().cause, NonFiniteCause::kOverflow);  // overflows float64 as well
  net.faults["head"] = [](const at::Tensor& x) { return torch::pow(x.abs() * 0 + 1e30, 50); };
  EXPECT_EQ(trace(net).value().cause, NonFiniteCause::kOverflow);
  net.faults["head"] = [](const at::Tensor& x) { return torch::pow(x * 0, -1); };
  EXPECT_EQ(trace(net).value().cause, NonFiniteCause::kDomain);
  net.faults["head"] = [](const at::Tensor& x) { return x.to(at::kDouble) / (x - x); };
  const auto domain = trace(net);
  ASSERT_TRUE(domain);
  EXPECT_EQ(domain->op, "aten::div");
  EXPECT_EQ(domain->cause, NonFiniteCause::kDomain);
}

TEST(TraceNonFinite, DoesNotGuessAboutAnOperationThatDrawsRandomNumbers) {
  Convnet net;
  net.faults["head"] = [](const at::Tensor& x) {
    return x + torch::empty_like(x, at::kHalf).log_normal_(20, 1);
  };
  const auto origin = trace(net);
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->op, "aten::log_normal_") << origin->to_string();
  EXPECT_EQ(origin->cause, NonFiniteCause::kUnknown);
  EXPECT_FALSE(origin->finite_in_float32.has_value());
}

// ---- values that were non-finite before the batch

TEST(TraceNonFinite, NamesAWeightThatIsNotFiniteIfTheBatchReadsIt) {
  Transformer net;
  set(net.embedding->weight, [](at::Tensor& w) { w[13] = kNan; });
  EXPECT_FALSE(trace(net));  // no token 13 in this batch
  net.tokens[0][0] = 13;
  const auto origin = trace(net);
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->cause, NonFiniteCause::kParameter) << origin->to_string();
  EXPECT_EQ(origin->tensor, "parameter 'embedding.weight'");
  EXPECT_EQ(origin->module, "embedding");
  EXPECT_EQ(origin->result.non_finite, 8);

  for (const char* mode : {"32-true", "16-mixed", "bf16-true"}) {
    Transformer other;
    set(other.norm2->weight, [](at::Tensor& w) { w[3] = kInf; });
    const auto found = trace(other, mode);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->tensor, "parameter 'norm2.weight'") << found->to_string();
  }
}

TEST(TraceNonFinite, TakesNoParameterForAMask) {
  Transformer net;
  set(net.head->bias, [&](at::Tensor& b) { b.zero_()[net.tokens[0][0].item<int64_t>()] = -kInf; });
  const auto origin = trace(net);
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->tensor, "parameter 'head.bias'") << origin->to_string();
}

TEST(TraceNonFinite, NamesABufferThatIsNotFinite) {
  Convnet net;
  net.norm->eval();
  set(net.norm->running_mean, [](at::Tensor& mean) { mean[1] = kNan; });
  const auto origin = trace(net);
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->tensor, "buffer 'norm.running_mean'") << origin->to_string();
  EXPECT_EQ(origin->module, "norm");
}

TEST(TraceNonFinite, NamesTheBatchInEveryMode) {
  for (const char* mode : {"32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"}) {
    for (const float value : {kNan, kInf, -kInf}) {
      Convnet net;
      net.images[1][0][2][2] = value;
      const auto origin = trace(net, mode);
      ASSERT_TRUE(origin);
      EXPECT_EQ(origin->cause, NonFiniteCause::kInput) << origin->to_string();
      EXPECT_EQ(origin->result.non_finite, 1);
      EXPECT_THAT(origin->cure, HasSubstr("data"));
      EXPECT_THAT(origin->to_string(), HasSubstr("read input"));
    }
  }
}

// ---- infinities

TEST(TraceNonFinite, NamesTheSoftmaxOfARowThatIsMaskedEntirely) {
  for (const char* mode : {"32-true", "16-mixed", "bf16-true"}) {
    Transformer net;
    set(net.mask, [](at::Tensor& mask) { mask[2] = -kInf; });
    const auto origin = trace(net, mode);
    ASSERT_TRUE(origin);
    EXPECT_THAT(origin->op, HasSubstr("softmax")) << origin->to_string();
    EXPECT_EQ(origin->cause, NonFiniteCause::kInfinities);
    EXPECT_EQ(origin->module, "qkv");
    EXPECT_THAT(origin->cure, HasSubstr("masked"));
  }
}

TEST(TraceNonFinite, MasksWrittenInEveryWayAreNobodysFault) {
  const at::Tensor later = torch::ones({6, 6}, at::kBool).triu(1);
  const std::vector<Fault> masks = {
      [&](const at::Tensor& x) { return x.masked_fill(later, -kInf); },
      [&](const at::Tensor& x) { return x.clone().masked_fill_(later, -kInf); },
      [&](const at::Tensor& x) { return torch::where(later, -kInf, x); },
      [&](const at::Tensor& x) { return torch::where(later, torch::tensor(-kInf, x.options()), x); },
      [&](const at::Tensor& x) {
        return x + torch::log(torch::ones({6, 6}).tril()).to(x.scalar_type());
      }};
  for (const Fault& mask : masks) {
    Transformer net;
    net.faults["scores"] = mask;
    EXPECT_FALSE(trace(net));
    EXPECT_FALSE(trace(net, "16-mixed"));
    net.faults["head"] = [](const at::Tensor& x) { return torch::sqrt(-torch::abs(x) - 1); };
    const auto origin = trace(net, "16-mixed");
    ASSERT_TRUE(origin);
    EXPECT_EQ(origin->op, "aten::sqrt") << origin->to_string();
    EXPECT_EQ(origin->module, "head");
  }
}

TEST(TraceNonFinite, NamesAConstantThatReachesTheLoss) {
  for (const float value : {kInf, -kInf, kNan}) {
    Convnet net;
    net.faults["loss"] = [&](const at::Tensor& x) { return x + value; };
    const auto origin = trace(net);
    ASSERT_TRUE(origin);
    EXPECT_EQ(origin->op, "aten::add") << origin->to_string();
    EXPECT_EQ(origin->cause, NonFiniteCause::kConstant);
  }
}

TEST(TraceNonFinite, NamesTheMaskAndNotTheStepsOfTheOperationThatMetIt) {
  Convnet net;
  net.faults["loss"] = [](const at::Tensor& x) {
    return x.expand({3}).masked_fill(torch::ones({3}, at::kBool), -kInf).logsumexp(0);
  };
  const auto origin = trace(net);
  ASSERT_TRUE(origin);
  EXPECT_THAT(origin->op, HasSubstr("masked_fill")) << origin->to_string();
  EXPECT_EQ(origin->cause, NonFiniteCause::kConstant);
}

TEST(TraceNonFinite, AnInfinityThatVanishesLaterIsBlamedWhenItsDerivativeIsNan) {
  Convnet net;
  net.faults["pool"] = [](const at::Tensor& x) { return torch::tanh(torch::exp(x * 0 + 200)) + x; };
  const auto origin = trace(net);  // tanh(inf) is 1; backwards 0 * inf
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->op, "aten::exp") << origin->to_string();
  EXPECT_FALSE(origin->backward);
}

TEST(TraceNonFinite, NamesTheDivisionThatWhereHidesInTheForward) {
  Convnet net;
  net.faults["pool"] = [](const at::Tensor& x) {
    const at::Tensor zero = x * 0;
    return torch::where(zero == 0, x, x / zero);
  };
  const auto origin = trace(net);
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->op, "aten::div") << origin->to_string();
  EXPECT_EQ(origin->cause, NonFiniteCause::kDomain);
  EXPECT_EQ(origin->module, "norm");
}

// ---- nothing is left behind

struct DropoutNet final : Faulty {
  torch::nn::Linear in = register_module("in", torch::nn::Linear(8, 64));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(64));
  at::Tensor x = torch::randn({4, 8});
  at::Tensor loss(const Precision& /*precision*/) override {
    const at::Tensor y = torch::dropout(norm(in(x)), 0.5, /*train=*/true);
    return at_place("loss", y.sum() + 0 * torch::randn({1}).sum());
  }
};

TEST(TraceNonFinite, LeavesGradientsBuffersAndGeneratorsAsTheyWere) {
  torch::manual_seed(5);
  DropoutNet net;
  const Precision precision("32-true");
  net.loss(precision).backward();
  const at::Tensor gradient = net.in->weight.grad(), values = gradient.clone(),
                   mean = net.norm->running_mean.clone();
  const at::Tensor state = at::globalContext().defaultGenerator(at::kCPU).get_state();
  const auto expect_untouched = [&] {
    EXPECT_TRUE(net.in->weight.grad().is_same(gradient));
    EXPECT_TRUE(gradient.equal(values));
    EXPECT_TRUE(net.norm->running_mean.equal(mean));
    EXPECT_EQ(net.norm->num_batches_tracked.item<int64_t>(), 1);
    EXPECT_TRUE(at::globalContext().defaultGenerator(at::kCPU).get_state().equal(state));
    EXPECT_FALSE(at::hasCallbacks());
  };
  EXPECT_FALSE(trace_nonfinite(net, [&] { return net.loss(precision); }));
  expect_untouched();
  net.faults["loss"] = [](const at::Tensor& x) { return x / 0; };
  EXPECT_TRUE(trace_nonfinite(net, [&] { return net.loss(precision); }));
  expect_untouched();
  net.faults["loss"] = [](const at::Tensor& /*x*/) -> at::Tensor {
    throw std::runtime_error("out of memory");
  };
  EXPECT_THROW(trace_nonfinite(net, [&] { return net.loss(precision); }), std::runtime_error);
  expect_untouched();
  EXPECT_THROW(trace_nonfinite(net, [&] { return at::Tensor(); }), c10::ValueError);
  EXPECT_THROW(trace_nonfinite(net, [&] { return net.x; }), c10::ValueError);
  EXPECT_THROW(trace_nonfinite(net,
                               [&]() -> at::Tensor {
                                 trace_nonfinite(net, [&] { return net.x.sum(); });
                                 return net.x.sum();
                               }),
               c10::Error);
  expect_untouched();
}

TEST(TraceNonFinite, RunsTheBatchFromAReplayPoint) {
  torch::manual_seed(5);
  DropoutNet net;
  const Precision precision("32-true");
  const ReplayPoint point(net);
  const float first = net.loss(precision).item<float>();
  float again = 0;
  const auto batch = [&] {
    const at::Tensor loss = net.loss(precision);
    again = loss.item<float>();
    return loss;
  };
  EXPECT_FALSE(trace_nonfinite(net, batch));
  EXPECT_NE(again, first);
  const at::Tensor state = at::globalContext().defaultGenerator(at::kCPU).get_state();
  EXPECT_FALSE(trace_nonfinite(net, batch, point));
  EXPECT_EQ(again, first);
  EXPECT_TRUE(at::globalContext().defaultGenerator(at::kCPU).get_state().equal(state));
}

TEST(TraceNonFinite, ALossThatOutlivesTheTraceIsOrdinary) {
  Convnet net;
  const Precision precision("32-true");
  at::Tensor kept, weight = torch::ones({1}, torch::requires_grad());
  EXPECT_FALSE(trace_nonfinite(net, [&] {
    kept = weight.sum() + net.loss(precision).detach();
    return kept;
  }));
  kept.backward();
  EXPECT_EQ(weight.grad().item<float>(), 1);
  EXPECT_FALSE(trace_nonfinite(net, [&] { return torch::ones({}); }));  // there is no gradient to check
}

TEST(TraceNonFinite, ATiedWeightSpeaksForBothItsModules) {
  torch::manual_seed(1);
  struct Tied : torch::nn::Module {
    torch::nn::Linear in = register_module("in", torch::nn::Linear(4, 4)), out{nullptr};
    Tied() {
      out = torch::nn::Linear(4, 4);
      out->register_parameter("tied", in->weight);
      register_module("out", out);
    }
  } net;
  net.in->weight.mutable_grad() = torch::ones({4, 4});
  set(net.in->weight, [](at::Tensor& w) { w[0][0] = kNan; });
  const auto origin = trace_nonfinite(net, [&] { return net.in(torch::ones({1, 4})).sum(); });
  ASSERT_TRUE(origin);
  EXPECT_THAT(origin->tensor, HasSubstr("in.weight or out.tied")) << origin->to_string();
  EXPECT_TRUE(net.in->weight.grad().equal(torch::ones({4, 4})));
}

// The example of docs/nonfinite.md.
TEST(TraceNonFinite, ExplainsASkippedStepOfAHandWrittenLoop) {
  Convnet net;
  torch::optim::SGD optimizer(net.parameters(), 0.1);
  GradScaler scaler(at::kCPU, {.init_scale = 1e9});
  const auto forward = [&] {
    const Autocast region(at::kCPU, {.dtype = at::kHalf});
    return net.loss(Precision("32-true"));
  };
  const at::Tensor weight = net.head->weight.detach().clone();
  int skipped = 0;
  for (int step = 0; step < 30; ++step) {
    const ReplayPoint point(net);
    optimizer.zero_grad();
    scaler.scale(forward()).backward();
    if (!scaler.step(optimizer)) {
      const auto origin = trace_nonfinite(
          net, [&] { return scaler.scale(forward()); }, point);
      ASSERT_TRUE(origin);
      EXPECT_EQ(origin->cause, NonFiniteCause::kLossScale) << origin->to_string();
      EXPECT_TRUE(net.head->weight.equal(weight));
      ++skipped;
    }
    scaler.update();
    if (!net.head->weight.equal(weight)) break;
  }
  EXPECT_GT(skipped, 3);
  EXPECT_FALSE(net.head->weight.equal(weight));  // training continued as it would have without the trace
  EXPECT_EQ(net.norm->num_batches_tracked.item<int64_t>(), skipped + 1);
}

TEST(TraceNonFinite, ReportReadsAsTwoLines) {
  Convnet net;
  net.faults["pool"] = [](const at::Tensor& x) { return torch::log(x - x); };
  const auto origin = trace(net);
  ASSERT_TRUE(origin);
  const std::string text = origin->to_string();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_THAT(text, testing::StartsWith(
                        "forward: aten::log after norm, before head made output 0: Float [3, 4, 4, 4]"));
  EXPECT_THAT(text, HasSubstr("cause: outside the operation's domain"));
}

// ---- GPU

TEST(TraceNonFinite, FindsForwardAndBackwardFaultsOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  const at::Device device(at::kCUDA, 0);
  const auto precision = make_precision("16-mixed", device);
  Convnet net;
  net.to(device);
  net.images = net.images.to(device);
  const auto batch = [&] { return net.loss(*precision); };
  EXPECT_FALSE(trace_nonfinite(net, batch));
  net.faults["pool"] = [](const at::Tensor& x) { return x + torch::sqrt(x * 0); };
  const auto backward = trace_nonfinite(net, batch);  // on autograd's thread for the device
  ASSERT_TRUE(backward);
  EXPECT_EQ(backward->forward_op, "aten::sqrt") << backward->to_string();
  EXPECT_EQ(backward->module, "norm");
  net.faults["pool"] = [](const at::Tensor& x) { return torch::log(x - x); };
  const auto forward = trace_nonfinite(net, batch);
  ASSERT_TRUE(forward);
  EXPECT_EQ(forward->op, "aten::log") << forward->to_string();
  net.faults.clear();
  const auto scaled = trace_nonfinite(net, [&] { return batch() * torch::full({}, 1e9, device); });
  ASSERT_TRUE(scaled);
  EXPECT_EQ(scaled->cause, NonFiniteCause::kLossScale) << scaled->to_string();
}

}  // namespace
}  // namespace mantissa::nonfinite_trace_test
