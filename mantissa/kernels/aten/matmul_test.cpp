#include <exception>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/kernels/aten/matmul_internal.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/kernels/aten/tensors_internal.h"
#include "mantissa/kernels/aten/test_support_internal.h"
#include "mantissa/kernels/cpu/builds_internal.h"
#include "mantissa/kernels/cpu/gemm.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::matmul_test {
namespace {

using test::same_bits;
using Compute = std::function<at::Tensor()>;

class Matmul : public test::WithCpuKernels {};

/// Tests all forms through the functions that a program calls. `f` computes in the dtype of its inputs.
void expect_near_exact(const std::vector<at::Tensor>& inputs, int64_t k,
                       const std::function<at::Tensor(const std::vector<at::Tensor>&)>& f) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    std::vector<at::Tensor> low, exact, magnitude;
    for (const at::Tensor& input : inputs) {
      low.push_back(input.to(dtype));
      exact.push_back(low.back().to(at::kDouble));
      magnitude.push_back(exact.back().abs());
    }
    test::expect_within_bound(f(low), f(exact), f(magnitude), k);
  }
}

TEST_F(Matmul, EveryFormIsNearTheExactResult) {
  for (const int64_t m : {1, 2, 7, 130}) {
    const at::Tensor a = at::randn({m, 65}), b = at::randn({65, 33}), c = at::randn({m, 33}),
                     bias = at::randn({33});
    const at::Tensor x = at::randn({3, m, 65}), y = at::randn({3, 65, 33}), z = at::randn({3, m, 33});
    const at::Tensor vec = at::randn({65}), vec_out = at::randn({m});
    SCOPED_TRACE(m);
    expect_near_exact({a, b}, 65, [](auto& t) { return at::mm(t[0], t[1]); });
    expect_near_exact({a.t().contiguous(), b}, 65, [](auto& t) { return at::mm(t[0].t(), t[1]); });
    expect_near_exact({a, b.t().contiguous()}, 65, [](auto& t) { return at::mm(t[0], t[1].t()); });
    expect_near_exact({a, b}, 65, [](auto& t) {
      at::Tensor out = at::empty({0}, t[0].options());
      return at::mm_out(out, t[0], t[1]);
    });
    expect_near_exact({a, b}, 65, [m](auto& t) {
      at::Tensor out = at::empty({33, m}, t[0].options()).t();
      return at::mm_out(out, t[0], t[1]);
    });
    for (const at::Tensor& self : {c, bias, bias.view({1, 33}), at::randn({m, 1}), at::randn({})})
      expect_near_exact({self, a, b}, 65, [](auto& t) { return at::addmm(t[0], t[1], t[2]); });
    expect_near_exact({c, a, b}, 65, [](auto& t) { return at::addmm(t[0], t[1], t[2], 0.25, 2); });
    expect_near_exact({c, a, b}, 65, [](auto& t) { return t[0].clone().addmm_(t[1], t[2], 0.5, 0.25); });
    expect_near_exact({bias, a, b}, 65, [](auto& t) {
      at::Tensor out = at::empty({0}, t[0].options());
      return at::addmm_out(out, t[0], t[1], t[2], 1, 1);
    });
    for (const bool use_gelu : {false, true}) {
      if (m < 16) continue;  // libtorch may compute these, and it rounds twice
      expect_near_exact({bias, a, b}, 65,
                        [=](auto& t) { return at::_addmm_activation(t[0], t[1], t[2], 1, 1, use_gelu); });
    }
    expect_near_exact({x, y}, 65, [](auto& t) { return at::bmm(t[0], t[1]); });
    expect_near_exact({x, y}, 65, [](auto& t) {
      at::Tensor out = at::empty({0}, t[0].options());
      return at::bmm_out(out, t[0], t[1]);
    });
    for (const at::Tensor& self : {z, bias, c, at::randn({3, 1, 1}), at::randn({})})
      expect_near_exact({self, x, y}, 65, [](auto& t) { return at::baddbmm(t[0], t[1], t[2], 0.5, 2); });
    expect_near_exact({z, x, y}, 65, [](auto& t) { return t[0].clone().baddbmm_(t[1], t[2], 2, 0.5); });
    expect_near_exact({z, x, y}, 65, [](auto& t) {
      at::Tensor out = at::empty({0}, t[0].options());
      return at::baddbmm_out(out, t[0], t[1], t[2], 1, 0.5);
    });
    expect_near_exact({a, vec}, 65, [](auto& t) { return at::mv(t[0], t[1]); });
    expect_near_exact({vec_out, a, vec}, 65, [](auto& t) { return at::addmv(t[0], t[1], t[2], 0.5, 2); });
    expect_near_exact({at::randn({1}), a, vec}, 65, [](auto& t) { return at::addmv(t[0], t[1], t[2]); });
    expect_near_exact({vec_out, a, vec}, 65, [](auto& t) { return t[0].clone().addmv_(t[1], t[2], 0.5, 2); });
    expect_near_exact({a, b.t().contiguous(), bias}, 65,
                      [](auto& t) { return at::linear(t[0], t[1], t[2]); });
    expect_near_exact({x, b.t().contiguous()}, 65, [](auto& t) { return at::linear(t[0], t[1]); });
    expect_near_exact({x, b}, 65, [](auto& t) { return at::matmul(t[0], t[1]); });
    expect_near_exact({x, y}, 65, [](auto& t) { return at::einsum("bik,bkj->ibj", {t[0], t[1]}); });
    expect_near_exact({x.narrow(1, 0, 1).expand({3, m, 65}), y.narrow(0, 0, 1).expand({3, 65, 33})}, 65,
                      [](auto& t) { return at::matmul(t[0], t[1]); });
  }
  for (const int64_t k : {1, 100, 5000}) {
    expect_near_exact({at::randn({k}), at::randn({k})}, k, [](auto& t) { return at::dot(t[0], t[1]); });
    expect_near_exact({at::randn({2 * k}), at::randn({k})}, k,
                      [](auto& t) { return at::dot(t[0].slice(0, 0, at::nullopt, 2), t[1]); });
  }
}

TEST_F(Matmul, AProblemIsMultipliedByABuildOfOurs) {
  const at::Tensor a = at::randn({9, 400}).to(at::kHalf), b = at::randn({400, 9}).to(at::kHalf);
  const at::Tensor got = at::empty({9, 9}, at::kHalf), want = at::empty({9, 9}, at::kHalf);
  kernels::Gemm g;
  g.m = g.n = 9;
  g.k = 400;
  g.a = matrix(a.const_data_ptr(), a);
  g.b = matrix(b.const_data_ptr(), b);
  g.out = matrix(got.mutable_data_ptr(), got);
  kernels::aten::matmul::gemm(g);
  g.out = matrix(want.mutable_data_ptr(), want);
  kernels::cpu::gemm(g, kernels::cpu::build_for(kernels::cpu::gemm_builds(), cpu_features()));
  EXPECT_TRUE(same_bits(got, want)) << "all tiers give the same bits";
}

TEST_F(Matmul, BetaZeroDoesNotReadSelf) {
  const at::Tensor nan = at::full({5, 6}, NAN).to(at::kHalf);
  const at::Tensor a = at::randn({5, 9}).to(at::kHalf), b = at::randn({9, 6}).to(at::kHalf);
  EXPECT_TRUE(same_bits(at::addmm(nan, a, b, 0), at::mm(a, b)));
  EXPECT_TRUE(same_bits(nan.clone().addmm_(a, b, 0), at::mm(a, b)));
  EXPECT_TRUE(at::addmm(nan, a, b, 1).isnan().all().item<bool>());
}

/// Cases that our kernels do not take, or treat by the same rules: the results are libtorch's.
TEST_F(Matmul, OddCasesAreAsInLibtorch) {
  const auto half = [](at::IntArrayRef sizes) { return at::randn(sizes).to(at::kHalf); };
  const at::Tensor a = half({4, 6}), b = half({6, 5}), c = half({4, 5});
  const at::Tensor inf = at::full({4, 6}, INFINITY).to(at::kHalf);
  const std::vector<Compute> cases = {
      [&] {
        return at::mm(half({4, 0}).zero_(), half({0, 5}));
      },
      [&] {
        return at::addmm(c, half({4, 0}), half({0, 5}), 0.5, 1);
      },
      [&] {
        return at::mm(half({0, 6}), b);
      },
      [&] {
        return at::bmm(half({0, 4, 6}), half({0, 6, 5}));
      },
      [&] { return at::addmm(c, inf, b, 1, 0); },
      [&] { return at::dot(half({0}), half({0})); },
      [&] { return at::mm(a.to(at::kFloat), b.to(at::kFloat)); },
      [&] { return at::mm(a.to(at::kDouble), b.to(at::kDouble)); },
      [&] {
        return at::mm(at::arange(24).view({4, 6}), at::arange(30).view({6, 5}));
      },
      [&] { return at::real(at::mm(a.to(at::kComplexFloat).conj(), b.to(at::kComplexFloat))); },
      [&] { return at::mm(a.to(at::kFloat).to_sparse(), b.to(at::kFloat)); },
      [&] {
        return at::bmm(at::ones({2, 3, 4}), at::ones({2, 4, 5}));
      },
      [&] {
        return at::baddbmm(at::ones({5}), at::ones({2, 3, 4}), at::ones({2, 4, 5}), 2, 3);
      },
      [&] {
        return at::addmv(at::ones({3}), at::ones({3, 4}), at::ones({4}));
      },
      [&] { return at::dot(at::ones({5000}), at::ones({5000})); }};
  for (size_t i = 0; i < cases.size(); ++i) {
    at::manual_seed(2);
    const at::Tensor ours = cases[i]();
    const at::Tensor theirs = stock([&] {
      at::manual_seed(2);
      return cases[i]();
    });
    EXPECT_TRUE(same_bits(ours, theirs)) << "case " << i;
  }
}

TEST_F(Matmul, ErrorsAreLibtorchs) {
  const auto half = [](at::IntArrayRef sizes) { return at::ones(sizes, at::kHalf); };
  at::Tensor out = half({4, 5}), wrong_dtype = at::ones({4, 5}), base = half({4, 6});
  at::Tensor small = half({5}), expanded = half({1, 5}).expand({4, 5});
  const std::vector<std::function<void()>> cases = {
      [&] {
        at::mm(half({4, 6}), half({7, 5}));
      },
      [&] {
        at::mm(half({4, 6}), half({6}));
      },
      [&] {
        at::mm(half({4, 6}), half({6, 5}).to(at::kBFloat16));
      },
      [&] {
        at::mm(half({4, 6}), half({6, 5}).to(at::kFloat));
      },
      [&] {
        at::bmm(half({2, 4, 6}), half({3, 6, 5}));
      },
      [&] {
        at::addmm(half({3, 5}), half({4, 6}), half({6, 5}));
      },
      [&] {
        at::addmm(half({1, 1, 4, 5}), half({4, 6}), half({6, 5}));
      },
      [&] {
        small.addmm_(half({4, 6}), half({6, 5}));
      },
      [&] {
        expanded.addmm_(half({4, 6}), half({6, 5}));
      },
      [&] {
        at::baddbmm(half({3, 4, 5}), half({2, 4, 6}), half({2, 6, 5}));
      },
      [&] {
        at::addmv(half({3}), half({4, 6}), half({6}));
      },
      [&] {
        at::addmv(half({4}), half({4, 6}), half({7}));
      },
      [&] { at::dot(half({4}), half({5})); },
      [&] {
        at::dot(half({4}), half({2, 2}));
      },
      [&] {
        at::mm_out(wrong_dtype, half({4, 6}), half({6, 5}));
      },
      [&] {
        at::addmm(half({4, 5}), half({4, 6}), half({6, 5}), c10::complex<double>(0, 1), 1);
      }};
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string ours = error_of<std::exception>(cases[i]);
    disable_cpu_kernels();
    EXPECT_EQ(ours, error_of<std::exception>(cases[i])) << "case " << i;
    enable_cpu_kernels();
  }
  EXPECT_NE(error_of(cases[0]), "no error");
}

/// If an output overlaps an input, libtorch multiplies or refuses.
TEST_F(Matmul, OutputsOverInputsAreLibtorchs) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // else libtorch's own result over its input depends on thread order
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor start = at::randn({40, 40}).to(dtype);
    const auto over_an_input = [&] {
      at::Tensor a = start.clone();
      at::mm_out(a, a, a);
      return a;
    };
    EXPECT_TRUE(same_bits(over_an_input(), stock(over_an_input)));
    const auto over_a_part = [&] {
      const at::Tensor all = at::cat({start, start});
      at::Tensor out = all.narrow(0, 1, 40);
      at::addmm_out(out, all.narrow(0, 0, 40), start, start);
    };
    const std::string ours = error_of(over_a_part);
    EXPECT_THAT(ours, testing::HasSubstr("refer to a single memory location"));
    disable_cpu_kernels();
    EXPECT_EQ(error_of(over_a_part), ours);
    enable_cpu_kernels();
  }
  at::set_num_threads(threads);
}

/// An output that grows moves, and so does the input that shares its memory.
TEST_F(Matmul, AnOutputMayGrowInTheMemoryOfAnInput) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor start = at::randn({40, 40}).to(dtype);
    const int64_t size = 1 << 20;  // large enough to be returned to the system at once
    const auto product = [&] {
      const at::Tensor all = at::zeros({size}, dtype);
      const at::Tensor a = all.narrow(0, 0, 1600).view({40, 40}).copy_(start);
      at::Tensor out = all.narrow(0, size, 0);
      at::mm_out(out, a, start);
      return out;
    };
    EXPECT_TRUE(same_bits(product(), stock(product)));
  }
}

TEST_F(Matmul, ResizingAnOutputWarnsAsInLibtorch) {
  const Warnings warnings;
  at::Tensor out = at::ones({2, 2}, at::kHalf);
  at::mm_out(out, at::ones({4, 6}, at::kHalf), at::ones({6, 5}, at::kHalf));
  EXPECT_EQ(out.sizes(), (std::vector<int64_t>{4, 5}));
  EXPECT_THAT(warnings.texts,
              testing::ElementsAre(testing::HasSubstr("An output with one or more elements was "
                                                      "resized")));
}

TEST_F(Matmul, GradientsAndTheirGradientsFlow) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const auto gradients = [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
      const at::Tensor y = at::linear(x, w, b);
      const auto first = torch::autograd::grad({y.square().sum()}, {x, w, b}, {}, true, true);
      const auto second = torch::autograd::grad({first[1].square().sum()}, {x, w});
      return std::vector<at::Tensor>{first[0], first[1], first[2], second[0], second[1]};
    };
    const at::Tensor x = at::randn({9, 20}).to(dtype), w = (at::randn({14, 20}) / 10).to(dtype),
                     b = (at::randn({14}) / 10).to(dtype);
    const auto variable = [](const at::Tensor& t) { return t.detach().clone().set_requires_grad(true); };
    const auto ours = gradients(variable(x), variable(w), variable(b));
    const auto exact =
        gradients(variable(x.to(at::kDouble)), variable(w.to(at::kDouble)), variable(b.to(at::kDouble)));
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].scalar_type(), dtype);
      // The error of several consecutive roundings to 16 bits.
      const double error = ((ours[i].to(at::kDouble) - exact[i]).norm() / exact[i].norm()).item<double>();
      EXPECT_LT(error, dtype == at::kHalf ? 2e-3 : 1.6e-2) << i;
    }
  }
}

TEST_F(Matmul, AutocastAndInferenceModeReachThem) {
  const at::Tensor x = at::randn({9, 20}), w = at::randn({14, 20}).set_requires_grad(true);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  const at::Tensor y = at::linear(x, w);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::clear_cache();
  EXPECT_EQ(y.scalar_type(), at::kHalf);
  y.sum().backward();
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(same_bits(y.detach(), at::mm(x.to(at::kHalf), w.detach().to(at::kHalf).t())));

  const c10::InferenceMode inference;
  const at::Tensor z = at::mm(x.to(at::kHalf), w.to(at::kHalf).t());
  EXPECT_TRUE(z.is_inference());
  EXPECT_TRUE(same_bits(z, y.detach()));
}

}  // namespace
}  // namespace mantissa::matmul_test
