// Things that a program may legally do around and inside a module. The trace must name the right operation
// and never throw.
#include <cmath>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <ATen/native/ConvUtils.h>
#include <torch/torch.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/trace/trace_nonfinite.h"

namespace mantissa::nonfinite_operations_test {
namespace {

using testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

/// One layer; `rest` takes its output and returns the loss.
struct Net : torch::nn::Module {
  Net() { torch::manual_seed(1); }
  torch::nn::Linear in{register_module("in", torch::nn::Linear(4, 4))};
};
using Rest = std::function<at::Tensor(const at::Tensor&)>;

std::optional<NonFiniteOrigin> trace(Net& net, const Rest& rest) {
  return trace_nonfinite(net, [&] { return rest(net.in(torch::ones({2, 4}))); });
}
std::optional<NonFiniteOrigin> trace(const Rest& rest) {
  Net net;
  return trace(net, rest);
}
at::Tensor above_one(const at::Tensor& h) { return h.abs() + 1; }
/// A fault that the tests below plant beside the operation under test.
at::Tensor faulty(const at::Tensor& h) { return torch::log(h * 0 - 1).sum(); }

struct Case {
  const char* name;
  Rest rest;
  const char* op;
  NonFiniteCause cause = NonFiniteCause::kOverflow;
};

void expect_each(const std::vector<Case>& cases) {
  for (const auto& [name, rest, op, cause] : cases) {
    SCOPED_TRACE(name);
    testing::internal::CaptureStderr();  // libtorch writes an observer's exceptions to it
    const auto origin = trace(rest);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::Not(HasSubstr("callback")));
    ASSERT_TRUE(origin);
    EXPECT_EQ(origin->op, op) << origin->to_string();
    EXPECT_EQ(origin->cause, cause) << origin->to_string();
  }
}

// ---- in place

TEST(TraceNonFiniteOperations, InPlaceOnesAreJudgedByWhatTheyWereGiven) {
  const at::Tensor big = torch::full({2, 4}, 1e30);
  expect_each({{"a number", [](const at::Tensor& h) { return above_one(h).mul_(1e30).mul_(1e30).sum(); },
                "aten::mul"},
               {"of fp16",
                [](const at::Tensor& h) { return above_one(h).to(at::kHalf).mul_(1e5).to(at::kFloat).sum(); },
                "aten::mul", NonFiniteCause::kDtypeRange},
               {"a tensor", [&](const at::Tensor& h) { return above_one(h).mul_(big).mul_(big).sum(); },
                "aten::mul_"},
               {"through a view",
                [](const at::Tensor& h) {
                  const at::Tensor y = above_one(h);
                  y.t().mul_(1e30).mul_(1e30);
                  return y.sum();
                },
                "aten::mul"},
               {"out= is an operand",
                [&](const at::Tensor& h) {
                  at::Tensor y = above_one(h.detach());
                  for (int i = 0; i < 2; ++i) at::mul_out(y, y, big);
                  return h.sum() + y.sum();
                },
                "aten::mul"},
               {"out= is the only operand",
                [](const at::Tensor& h) {
                  at::Tensor y = h.detach() * 0 + 100;
                  at::exp_out(y, y);
                  return h.sum() + y.sum();
                },
                "aten::exp"},
               {"a list",
                [](const at::Tensor& h) {
                  std::vector<at::Tensor> all{above_one(h.detach()), above_one(h.detach())};
                  for (int i = 0; i < 2; ++i) at::_foreach_mul_(all, 1e30);
                  return h.sum() + all[1].sum();
                },
                "aten::mul"},
               {"outside its domain", [](const at::Tensor& h) { return (h * 1).div_(0).sum(); }, "aten::div_",
                NonFiniteCause::kDomain},
               {"a number of a 0-dim tensor",
                [](const at::Tensor& h) { return (above_one(h).sum().to(at::kHalf) * 1e5).to(at::kFloat); },
                "aten::mul", NonFiniteCause::kDtypeRange}});
}

TEST(TraceNonFiniteOperations, ANumberThatIndexingWritesIsTheProgramsOwn) {
  const at::Tensor rows = torch::tensor({0, 1}), columns = torch::tensor({1, 2});
  for (const float value : {kInf, -kInf, kNan}) {
    const auto put = [&](const std::vector<at::indexing::TensorIndex>& where) {
      return [&, where](const at::Tensor& h) { return (h * 1).index_put_(where, value).sum(); };
    };
    expect_each({{"index_put_", put({rows, columns}), "aten::index_put_", NonFiniteCause::kConstant},
                 {"a slice", put({0, at::indexing::Slice(1, 3)}), "aten::fill_", NonFiniteCause::kConstant},
                 {"a row", put({0}), "aten::fill_", NonFiniteCause::kConstant},
                 {"scatter_",
                  [&](const at::Tensor& h) { return (h * 1).scatter_(1, rows.unsqueeze(1), value).sum(); },
                  "aten::scatter_", NonFiniteCause::kConstant}});
  }
  // An intended mask is not a fault.
  const at::Tensor later = torch::ones({2, 4}, at::kBool).triu(1);
  EXPECT_FALSE(trace(
      [&](const at::Tensor& h) { return (h * 1).index_put_({later}, -kInf).softmax(-1).pow(2).sum(); }));
}

// ---- writes into parameters

TEST(TraceNonFiniteOperations, AForwardMayWriteRowsOfItsParameters) {
  Net net;
  const at::Tensor before = net.in->weight.detach().clone();
  const auto forward = [&](const Rest& write) {
    return [&net, write](const at::Tensor& h) {
      {
        const torch::NoGradGuard no_grad;
        write(h);
      }
      return faulty(net.in(h));
    };
  };
  const std::vector<Rest> writes = {
      [&](const at::Tensor&) { return net.in->weight[0].fill_(0.5); },
      [&](const at::Tensor&) { return net.in->weight[1].copy_(net.in->weight[2]); },
      [&](const at::Tensor&) { return net.in->weight[2].div_(net.in->weight[2].norm()); },
      [&](const at::Tensor&) { return net.in->weight.mul_(0.9).add_(0.1); },
      [&](const at::Tensor&) { return net.in->weight.data()[0].fill_(0.5); }};
  for (const Rest& write : writes) {
    testing::internal::CaptureStderr();
    const auto origin = trace(net, forward(write));
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    ASSERT_TRUE(origin);
    EXPECT_EQ(origin->op, "aten::log") << origin->to_string();
    EXPECT_TRUE(net.in->weight.equal(before)) << "an EMA would have moved twice";
  }
  const auto origin =
      trace(net, forward([&](const at::Tensor&) { return net.in->bias.fill_(1e30).mul_(1e30); }));
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->cause, NonFiniteCause::kOverflow) << origin->to_string();
  EXPECT_EQ(origin->inputs.back().name, "in.bias");
}

// ---- how parameters are reported

TEST(TraceNonFiniteOperations, ABiasIsReportedAsItself) {
  Net net;
  net.in->bias.data()[2] = kNan;
  const auto origin = trace(net, [](const at::Tensor& h) { return h.sum(); });
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->tensor, "parameter 'in.bias'") << origin->to_string();
  EXPECT_EQ(origin->op, "aten::addmm");
  EXPECT_EQ(origin->result.sizes, std::vector<int64_t>{4});
  EXPECT_EQ(origin->result.non_finite, 1);

  torch::nn::Linear wide(4, 3);
  wide->weight.data().fill_(1e30);
  const auto product = trace_nonfinite(*wide, [&] { return wide(torch::full({5, 4}, 1e30)).sum(); });
  ASSERT_TRUE(product);
  ASSERT_EQ(product->inputs.size(), 3) << product->to_string();
  EXPECT_EQ(product->inputs[2].name, "weight");
  EXPECT_EQ(product->inputs[2].sizes, (std::vector<int64_t>{3, 4})) << "not as addmm takes it, transposed";
}

TEST(TraceNonFiniteOperations, AutocastsCastIsCalledSo) {
  Net net;
  torch::nn::Linear next(4, 4);
  net.register_module("next", next);
  const auto batch = [&](float factor) {
    return [&net, &next, factor] {
      const Autocast region(at::kCPU, {.dtype = at::kHalf});
      return next(net.in(torch::ones({2, 4})).to(at::kFloat) * factor).to(at::kFloat).sum();
    };
  };
  EXPECT_FALSE(trace_nonfinite(net, batch(1)));
  const auto origin = trace_nonfinite(net, batch(1e6));
  ASSERT_TRUE(origin);
  const std::string text = origin->to_string();
  EXPECT_TRUE(origin->by_autocast) << text;
  EXPECT_EQ(origin->cause, NonFiniteCause::kDtypeRange);
  EXPECT_THAT(text, HasSubstr("autocast's cast to Half for aten::addmm in next made output 0: Half [2, 4]"));
  EXPECT_THAT(text, HasSubstr("from Float [2, 4] |x| "));
  EXPECT_THAT(text, HasSubstr("ends at 65504"));
  EXPECT_THAT(origin->cure, HasSubstr("keep_in_fp32(model, \"next\")"));

  next->weight.data()[1][1] = 1e6;
  const auto weight = trace_nonfinite(net, batch(1));
  ASSERT_TRUE(weight);
  EXPECT_TRUE(weight->by_autocast) << weight->to_string();
  EXPECT_EQ(weight->inputs[0].name, "next.weight");
  EXPECT_THAT(weight->cure, HasSubstr("what made it grow"));

  const auto own = trace([](const at::Tensor& h) { return (h * 1e9).to(at::kHalf).to(at::kFloat).sum(); });
  ASSERT_TRUE(own);
  EXPECT_EQ(own->op, "aten::to");
  EXPECT_FALSE(own->by_autocast) << "the program's own cast";
}

// ---- operations without a kernel for float64

/// True if libtorch uses oneDNN for this CPU's bf16 convolutions.
bool onednn_convolves_bf16() {
  const at::Tensor x = at::ones({4, 16, 2, 4}, at::kBFloat16), w = at::ones({16, 16, 1, 1}, at::kBFloat16);
  const std::vector<c10::SymInt> one = {1, 1}, none = {0, 0};
  return at::native::select_conv_backend(x, w, std::nullopt, one, none, one, /*transposed=*/false, none, 1,
                                         std::nullopt) == at::native::ConvBackend::Mkldnn;
}

TEST(TraceNonFiniteOperations, AnOverflowIsKnownWithoutAKernelForFloat64) {
  // The operation is called by its own name, because the kernel that conv2d uses depends on the CPU.
  const auto convolution = [](at::ScalarType dtype) {
    return [dtype](const at::Tensor& h) {
      const at::Tensor x = (h.reshape({1, 1, 2, 4}) * 0 + 5e31).expand({4, 16, 2, 4}).to(dtype);
      const at::Tensor w = torch::full({16, 16, 1, 1}, 3e31).to(dtype);
      return at::mkldnn_convolution(x, w, {}, {0, 0}, {1, 1}, {1, 1}, 1).to(at::kFloat).sum();
    };
  };
  std::vector<Case> cases = {{"in float32", convolution(at::kFloat), "aten::mkldnn_convolution"}};
  if (onednn_convolves_bf16())
    cases.push_back({"in bf16", convolution(at::kBFloat16), "aten::mkldnn_convolution"});
  expect_each(cases);
}

// ---- values that fp16 flushes to 0

TEST(TraceNonFiniteOperations, AnFp16UnderflowIsDistinguishedFromAZero) {
  const auto half = [](const at::Tensor& h, float value) { return (h * 0 + value).to(at::kHalf); };
  const auto loss = [](const at::Tensor& y) { return y.to(at::kFloat).sum(); };
  struct Flush {
    const char* name;
    Rest rest;
    const char* by;
    double value;
  };
  const double sigmoid = 1 / (1 + std::exp(20.0));
  const std::vector<Flush> flushes = {
      {"an epsilon", [&](const at::Tensor& h) { return loss(half(h, 1) / (half(h, 1).norm() * 0 + 1e-8)); },
       "aten::add after in", 1e-8},
      {"0 / 0", [&](const at::Tensor& h) { return loss(half(h, 0) / half(h, 0).norm().clamp_min(1e-8)); },
       "aten::clamp_min after in", 1e-8},
      {"at once", [&](const at::Tensor& h) { return loss(torch::log(torch::sigmoid(half(h, -20)))); },
       "aten::sigmoid after in", sigmoid},
      {"a view", [&](const at::Tensor& h) { return loss(torch::log(torch::sigmoid(half(h, -20)).t()[1])); },
       "aten::sigmoid after in", sigmoid},
      {"operations on",
       [&](const at::Tensor& h) { return loss(torch::log(torch::sigmoid(half(h, -20)).mean(0).sqrt())); },
       "aten::sigmoid after in", sigmoid},
      {"in float32", [&](const at::Tensor& h) { return torch::log(loss(torch::sigmoid(half(h, -20)))); },
       "aten::sigmoid after in", sigmoid},
      {"in place", [&](const at::Tensor& h) { return loss(half(h, 1e-4F).mul_(1e-4).reciprocal()); },
       "aten::mul after in", 1e-8},
      {"the program's cast", [&](const at::Tensor& h) { return loss(1 / (h * 0 + 1e-9).to(at::kHalf)); },
       "aten::to after in", 1e-9}};
  for (const auto& [name, rest, by, value] : flushes) {
    SCOPED_TRACE(name);
    const auto origin = trace(rest);
    ASSERT_TRUE(origin);
    EXPECT_EQ(origin->cause, NonFiniteCause::kUnderflow) << origin->to_string();
    EXPECT_EQ(origin->flushed_by, by);
    EXPECT_NEAR(origin->flushed, value, 0.01 * value);
    EXPECT_THAT(origin->to_string(), HasSubstr(by + std::string(" flushed ")));
    EXPECT_THAT(origin->cure, HasSubstr("epsilon that fp16 holds"));
  }

  const auto kDomain = NonFiniteCause::kDomain;
  expect_each(
      {{"a 0 of its own", [&](const at::Tensor& h) { return loss(torch::log(half(h, 0))); }, "aten::log",
        kDomain},
       {"a negative value", [&](const at::Tensor& h) { return loss(torch::log(torch::relu(half(h, -1)))); },
        "aten::log", kDomain},
       {"beside one that was flushed",
        [&](const at::Tensor& h) { return loss(torch::sigmoid(half(h, -20)) / half(h, 0)); }, "aten::div",
        kDomain},
       {"one that was flushed, and written over",
        [&](const at::Tensor& h) { return loss(torch::log(torch::sigmoid(half(h, -20)).detach().zero_())); },
        "aten::log", kDomain},
       {"a sum that cancels", [&](const at::Tensor& h) { return loss(torch::log((half(h, 1) + 1e-4) - 1)); },
        "aten::log", kDomain}});
  const auto own = trace([&](const at::Tensor& h) { return loss(torch::log(half(h, 0))); });
  EXPECT_THAT(own.value().to_string(), HasSubstr("fp16 flushes all below 6e-08 to 0"));
}

// ---- user-defined functions, hooks, threads

struct RawNan : torch::autograd::Function<RawNan> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
    at::Tensor y = torch::zeros_like(x);
    y.data_ptr<float>()[1] = kNan;
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0]};
  }
};
struct Throws : torch::autograd::Function<Throws> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& /*gradients*/) {
    throw std::runtime_error("no derivative");
  }
};
/// Changes its input in place and has two outputs.
struct Dirty : torch::autograd::Function<Dirty> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, at::Tensor x) {
    x.mul_(1e30).mul_(1e30);
    context->mark_dirty({x});
    return {x, x.detach() * 0 + 1};
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0]};
  }
};

TEST(TraceNonFiniteOperations, NamesACustomFunctionWhoseForwardMakesNan) {
  const auto origin = trace([](const at::Tensor& h) { return RawNan::apply(h).sum(); });
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->op, "RawNan") << origin->to_string();
  EXPECT_EQ(origin->module, "in");
  EXPECT_EQ(origin->result.non_finite, 1);
  EXPECT_THAT(origin->cure, HasSubstr("function of your own"));
  expect_each(
      {{"in place", [](const at::Tensor& h) { return Dirty::apply(above_one(h))[0].sum(); }, "aten::mul"}});
}

TEST(TraceNonFiniteOperations, ABackwardThatThrowsEndsTheTraceAndLeavesNothing) {
  EXPECT_THROW(trace([](const at::Tensor& h) { return Throws::apply(h).sum(); }), std::runtime_error);
  EXPECT_THROW(trace([](const at::Tensor& h) { return torch::mm(h, h); }), c10::Error);
  EXPECT_FALSE(at::hasCallbacks());
  expect_each({{"a throw that the forward catches",
                [](const at::Tensor& h) {
                  EXPECT_THROW(torch::mm(h, h), c10::Error);
                  return faulty(h);
                },
                "aten::log", NonFiniteCause::kDomain}});
}

TEST(TraceNonFiniteOperations, WhatAHookWritesIsNoFaultOfTheData) {
  const auto origin = trace([](const at::Tensor& h) {
    const at::Tensor y = h * 1;
    y.register_hook([](const at::Tensor& gradient) {
      at::Tensor out = torch::zeros_like(gradient);
      out.data_ptr<float>()[0] = kNan;
      return out;
    });
    return y.sum();
  });
  ASSERT_TRUE(origin);
  EXPECT_TRUE(origin->backward);
  EXPECT_EQ(origin->cause, NonFiniteCause::kInput);
  EXPECT_THAT(origin->cure, HasSubstr("hooks")) << origin->to_string();
}

TEST(TraceNonFiniteOperations, SaysOfAThreadsNanThatItMayBeAThreads) {
  const auto origin = trace([](const at::Tensor& h) {
    at::Tensor made;
    std::thread([&] { made = torch::log(h * 0 - 1); }).join();
    return made.sum();
  });
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->cause, NonFiniteCause::kInput);
  EXPECT_THAT(origin->cure, HasSubstr("another thread")) << origin->to_string();
}

TEST(TraceNonFiniteOperations, SeesGradientsThatTheForwardLeavesByItself) {
  const auto origin = trace([](const at::Tensor& h) {
    torch::sqrt(h * 0).sum().backward({}, /*keep_graph=*/true);
    return h.sum();
  });
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->forward_op, "aten::sqrt") << origin->to_string();
}

// ---- every kind of tensor

TEST(TraceNonFiniteOperations, GoThroughEveryKindOfTensor) {
  const auto kDomain = NonFiniteCause::kDomain;
  expect_each(
      {{"complex", [](const at::Tensor& h) { return torch::abs(at::complex(h, h) / (h - h)).sum(); },
        "aten::div", kDomain},
       {"conjugated",
        [](const at::Tensor& h) {
          const at::Tensor z = at::complex(h, h).conj();
          return at::real(z / (z - z)).sum();
        },
        "aten::div", kDomain},
       {"integers", [](const at::Tensor& h) { return (h * (torch::arange(4) / torch::arange(4))).sum(); },
        "aten::div", kDomain},
       {"empty",
        [](const at::Tensor& h) {
          const at::Tensor none = h.slice(0, 0, 0);
          return faulty(torch::cat({none * 2, h})) + none.sum();
        },
        "aten::log", kDomain},
       {"sparse", [](const at::Tensor& h) { return faulty(torch::mm(torch::eye(2).to_sparse(), h)); },
        "aten::log", kDomain},
       {"sparse, in place",
        [](const at::Tensor& h) {
          return torch::mm(torch::eye(2).to_sparse().mul_(1e30).mul_(1e30), h).sum();
        },
        "aten::mul"},
       {"compressed rows",
        [](const at::Tensor& h) { return torch::mm((torch::eye(2) * kNan).to_sparse_csr(), h).sum(); },
        "aten::mul", NonFiniteCause::kConstant},
       {"nested",
        [](const at::Tensor& h) {
          const at::Tensor rows =
              at::_nested_tensor_from_tensor_list({h.detach()[0], h.detach()[1].slice(0, 0, 2)});
          return faulty(h) + (rows * 2).to_padded_tensor(0).sum();
        },
        "aten::log", kDomain},
       {"meta",
        [](const at::Tensor& h) {
          torch::ones({3}, at::device(at::kMeta)).mul_(2).add_(1);
          return faulty(h);
        },
        "aten::log", kDomain},
       {"float8", [](const at::Tensor& h) { return (h * 0 + 1e9).to(at::kFloat8_e5m2).to(at::kFloat).sum(); },
        "aten::to", NonFiniteCause::kDtypeRange},
       {"made in inference mode",
        [](const at::Tensor& h) {
          float mean = 0;
          {
            const c10::InferenceMode inference;
            at::Tensor made = torch::ones({2, 4});
            made[0].fill_(3);
            mean = made.mul_(2).mean().item<float>();
          }
          return faulty(h) * mean;
        },
        "aten::log", kDomain},
       {"half of a split, written without gradients",
        [](const at::Tensor& h) {
          const std::vector<at::Tensor> parts = h.split(2, 1);
          {
            const torch::NoGradGuard no_grad;
            parts[0].mul_(2);
          }
          return faulty(h);
        },
        "aten::log", kDomain}});
}

TEST(TraceNonFiniteOperations, GoThroughSeveralOutputs) {
  const auto kDomain = NonFiniteCause::kDomain;
  expect_each(
      {{"topk", [](const at::Tensor& h) { return torch::sqrt(std::get<0>(torch::topk(h, 2)) * 0).sum(); },
        "aten::div", kDomain},
       {"unbind",
        [](const at::Tensor& h) {
          const std::vector<at::Tensor> rows = (h * 1).unbind(0);
          return (rows[0] + torch::log(rows[1] * 0 - 1)).sum();
        },
        "aten::log", kDomain},
       {"native_layer_norm",
        [](const at::Tensor& h) { return std::get<0>(at::native_layer_norm(h * 0, {4}, {}, {}, 0)).sum(); },
        "aten::native_layer_norm", kDomain}});

  torch::manual_seed(1);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(4, 5));
  const auto batch = [&] { return std::get<0>(lstm(torch::ones({3, 2, 4}))).sum(); };
  EXPECT_FALSE(trace_nonfinite(*lstm, batch));
  lstm->named_parameters()["weight_hh_l0"].data()[3][2] = kNan;
  const auto origin = trace_nonfinite(*lstm, batch);
  ASSERT_TRUE(origin);
  EXPECT_EQ(origin->tensor, "parameter 'weight_hh_l0'") << origin->to_string();
  EXPECT_EQ(origin->result.non_finite, 1);
}

}  // namespace
}  // namespace mantissa::nonfinite_operations_test
