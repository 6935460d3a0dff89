#include "mantissa/kernels/overrides.h"

#include <atomic>
#include <cstdlib>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <vector>

#include <ATen/CPUFunctions.h>
#include <ATen/CompositeExplicitAutogradFunctions.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "mantissa/kernels/convolutions_internal.h"
#include "mantissa/kernels/gelu_internal.h"
#include "mantissa/kernels/products_internal.h"
#include "mantissa/kernels/scaled_dot_product_internal.h"
#include "mantissa/kernels/test_support_internal.h"
#include "mantissa/kernels/unscale.h"

namespace mantissa::overrides_test {
namespace {

using test::error_of;
using test::same_bits;
using Compute = std::function<at::Tensor()>;

class Overrides : public testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(1);
    if (!enable_cpu_kernels()) GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0";
  }
  void TearDown() override { disable_cpu_kernels(); }

  static at::Tensor stock(const Compute& compute) {
    disable_cpu_kernels();
    const at::Tensor result = compute();
    enable_cpu_kernels();
    return result;
  }
};

/// An operator's call through the dispatcher, and straight to the kernel of either library.
struct Call {
  const char* name;
  Compute dispatched, ours, stock;
};

std::vector<Call> calls(at::ScalarType dtype) {
  namespace stock = at::cpu;
  namespace composite = at::compositeexplicitautograd;
  at::manual_seed(3);
  const auto low = [dtype](at::IntArrayRef sizes) { return at::randn(sizes).to(dtype); };
  const at::Tensor a = low({40, 600}), b = low({600, 30}), c = low({40, 30}), v = low({600}), w = low({40});
  const at::Tensor as = low({3, 40, 600}), bs = low({3, 600, 30}), cs = low({3, 40, 30}), x = low({500});
  const at::Tensor images = low({2, 16, 12, 12}), kernel = low({16, 16, 3, 3}), result = low({2, 16, 10, 10});
  const at::Tensor q = low({2, 3, 40, 32}), k = low({2, 3, 50, 32}), v4 = low({2, 3, 50, 32}),
                   gradient = low({2, 3, 40, 32});
  const std::vector<int64_t> one = {1, 1}, none = {0, 0};
  const auto [attention, sums] = stock::_scaled_dot_product_flash_attention_for_cpu(q, k, v4);
  const auto out = [dtype](const auto& write) {
    at::Tensor out = at::empty({0}, dtype);
    write(out);
    return out;
  };
  const auto in_place = [](const at::Tensor& self, const auto& change) {
    at::Tensor copy = self.clone();
    change(copy);
    return copy;
  };
  const auto unscaled = [=](const auto& unscale) {
    std::vector<at::Tensor> gradients = {x.clone(), a.clone()};
    at::Tensor found_inf = at::zeros({1});
    unscale(gradients, found_inf, at::full({}, 1.0F / 3));
    return at::cat({gradients[0], gradients[1].view(-1)});
  };
  return {
      {"mm", [=] { return at::mm(a, b); }, [=] { return products::mm(a, b); },
       [=] { return stock::mm(a, b); }},
      {"mm.out", [=] { return out([&](auto& y) { at::mm_out(y, a, b); }); },
       [=] { return out([&](auto& y) { products::mm_out(a, b, y); }); },
       [=] { return out([&](auto& y) { stock::mm_outf(a, b, y); }); }},
      {"addmm", [=] { return at::addmm(c, a, b, 2, 3); }, [=] { return products::addmm(c, a, b, 2, 3); },
       [=] { return stock::addmm(c, a, b, 2, 3); }},
      {"addmm.out", [=] { return out([&](auto& y) { at::addmm_out(y, c, a, b, 2, 3); }); },
       [=] { return out([&](auto& y) { products::addmm_out(c, a, b, 2, 3, y); }); },
       [=] { return out([&](auto& y) { stock::addmm_outf(c, a, b, 2, 3, y); }); }},
      {"addmm_", [=] { return in_place(c, [&](auto& y) { y.addmm_(a, b, 2, 3); }); },
       [=] { return in_place(c, [&](auto& y) { products::addmm_(y, a, b, 2, 3); }); },
       [=] { return in_place(c, [&](auto& y) { stock::addmm_(y, a, b, 2, 3); }); }},
      {"_addmm_activation", [=] { return at::_addmm_activation(c, a, b, 1, 1, true); },
       [=] { return products::addmm_activation(c, a, b, 1, 1, true); },
       [=] { return stock::_addmm_activation(c, a, b, 1, 1, true); }},
      {"bmm", [=] { return at::bmm(as, bs); }, [=] { return products::bmm(as, bs); },
       [=] { return stock::bmm(as, bs); }},
      {"bmm.out", [=] { return out([&](auto& y) { at::bmm_out(y, as, bs); }); },
       [=] { return out([&](auto& y) { products::bmm_out(as, bs, y); }); },
       [=] { return out([&](auto& y) { stock::bmm_outf(as, bs, y); }); }},
      {"baddbmm", [=] { return at::baddbmm(cs, as, bs, 2, 3); },
       [=] { return products::baddbmm(cs, as, bs, 2, 3); }, [=] { return stock::baddbmm(cs, as, bs, 2, 3); }},
      {"baddbmm.out", [=] { return out([&](auto& y) { at::baddbmm_out(y, cs, as, bs, 2, 3); }); },
       [=] { return out([&](auto& y) { products::baddbmm_out(cs, as, bs, 2, 3, y); }); },
       [=] { return out([&](auto& y) { stock::baddbmm_outf(cs, as, bs, 2, 3, y); }); }},
      {"baddbmm_", [=] { return in_place(cs, [&](auto& y) { y.baddbmm_(as, bs, 2, 3); }); },
       [=] { return in_place(cs, [&](auto& y) { products::baddbmm_(y, as, bs, 2, 3); }); },
       [=] { return in_place(cs, [&](auto& y) { stock::baddbmm_(y, as, bs, 2, 3); }); }},
      {"addmv", [=] { return at::addmv(w, a, v, 2, 3); }, [=] { return products::addmv(w, a, v, 2, 3); },
       [=] { return stock::addmv(w, a, v, 2, 3); }},
      {"addmv.out", [=] { return out([&](auto& y) { at::addmv_out(y, w, a, v, 2, 3); }); },
       [=] { return out([&](auto& y) { products::addmv_out(w, a, v, 2, 3, y); }); },
       [=] { return out([&](auto& y) { stock::addmv_outf(w, a, v, 2, 3, y); }); }},
      {"addmv_", [=] { return in_place(w, [&](auto& y) { y.addmv_(a, v, 2, 3); }); },
       [=] { return in_place(w, [&](auto& y) { products::addmv_(y, a, v, 2, 3); }); },
       [=] { return in_place(w, [&](auto& y) { stock::addmv_(y, a, v, 2, 3); }); }},
      {"dot", [=] { return at::dot(x, x); }, [=] { return products::dot(x, x); },
       [=] { return stock::dot(x, x); }},
      {"gelu", [=] { return at::gelu(x); }, [=] { return gelus::gelu(x, "none"); },
       [=] { return stock::gelu(x, "none"); }},
      {"gelu_", [=] { return in_place(x, [&](auto& y) { at::gelu_(y); }); },
       [=] { return in_place(x, [&](auto& y) { gelus::gelu_(y, "none"); }); },
       [=] { return in_place(x, [&](auto& y) { stock::gelu_(y, "none"); }); }},
      {"gelu_backward", [=] { return at::gelu_backward(x, x); },
       [=] { return gelus::gelu_backward(x, x, "none"); },
       [=] { return stock::gelu_backward(x, x, "none"); }},
      {"attention", [=] { return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v4)); },
       [=] { return std::get<0>(scaled_dot_product::forward(q, k, v4, 0, false, {}, {})); },
       [=] { return std::get<0>(stock::_scaled_dot_product_flash_attention_for_cpu(q, k, v4)); }},
      {"attention's gradient",
       [=, attention = attention, sums = sums] {
         return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu_backward(
             gradient, q, k, v4, attention, sums, 0, false));
       },
       [=, attention = attention, sums = sums] {
         return std::get<0>(
             scaled_dot_product::backward(gradient, q, k, v4, attention, sums, 0, false, {}, {}));
       },
       [=, attention = attention, sums = sums] {
         return std::get<0>(stock::_scaled_dot_product_flash_attention_for_cpu_backward(
             gradient, q, k, v4, attention, sums, 0, false));
       }},
      {"convolution", [=] { return at::convolution(images, kernel, {}, one, none, one, false, none, 1); },
       [=] {
         return convolutions::convolution(images, kernel, {}, one, none, one, false, none, 1, false, false,
                                          false, false);
       },
       [=] { return composite::convolution(images, kernel, {}, one, none, one, false, none, 1); }},
      {"convolution_backward",
       [=] {
         return std::get<1>(at::convolution_backward(result, images, kernel, {}, one, none, one, false, none,
                                                     1, {false, true, false}));
       },
       [=] {
         return std::get<1>(convolutions::convolution_backward(result, images, kernel, {}, one, none, one,
                                                               false, none, 1, {false, true, false}));
       },
       [=] {
         return std::get<1>(composite::convolution_backward(result, images, kernel, {}, one, none, one, false,
                                                            none, 1, {false, true, false}));
       }},
      {"the scaler's check and unscaling",
       [=] {
         return unscaled([](auto& gradients, auto& found_inf, const auto& inv_scale) {
           at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale);
         });
       },
       [=] {
         return unscaled([](auto& gradients, auto& found_inf, const auto& inv_scale) {
           non_finite_check_and_unscale_(gradients, found_inf, inv_scale);
         });
       },
       [=] {
         return unscaled([](auto& gradients, auto& found_inf, const auto& inv_scale) {
           stock::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale);
         });
       }}};
}

TEST_F(Overrides, AreOnAndOffByACall) {
  EXPECT_TRUE(cpu_kernels_enabled());
  EXPECT_TRUE(enable_cpu_kernels()) << "a second time";
  EXPECT_TRUE(cpu_kernels_enabled());
  disable_cpu_kernels();
  EXPECT_FALSE(cpu_kernels_enabled());
  disable_cpu_kernels();
  EXPECT_FALSE(cpu_kernels_enabled());
  EXPECT_TRUE(enable_cpu_kernels());
}

TEST_F(Overrides, EveryOperatorIsOursWhileTheyAreOnAndElseLibtorchs) {
  int told_apart = 0;
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const Call& call : calls(dtype)) {
      SCOPED_TRACE(std::string(call.name) + " of " + c10::toString(dtype));
      const at::Tensor ours = call.ours();
      EXPECT_TRUE(same_bits(call.dispatched(), ours));
      disable_cpu_kernels();
      const at::Tensor theirs = call.stock();  // which calls other operators, too
      EXPECT_TRUE(same_bits(call.dispatched(), theirs));
      enable_cpu_kernels();
      EXPECT_TRUE(same_bits(call.dispatched(), ours));
      told_apart += same_bits(ours, theirs) ? 0 : 1;
    }
  EXPECT_GT(told_apart, 0) << "no operator's bits differ between the two: nothing was tested";
}

/// A sum of small whole numbers, which every kernel computes alike.
bool trains_one_step() {
  const at::Tensor weight = at::ones({16, 16}).requires_grad_();
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor product = at::matmul(at::linear(at::ones({16, 16}), weight), weight);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  product.sum().backward();
  return at::equal(weight.grad(), at::full({16, 16}, 512)) &&
         at::equal(product.detach(), at::full({16, 16}, 256, at::kBFloat16));
}

/// While a call is under way, in libtorch's autocast or below it, what it is going to call must not vanish.
TEST_F(Overrides, AreSwitchedWhileThreadsTrainAndMultiply) {
  std::atomic<bool> stop = false;
  std::atomic<int> rounds = 0, wrong = 0;
  const auto repeat = [&](const std::function<bool()>& is_right) {
    at::set_num_threads(1);
    while (!stop) {
      if (!is_right()) ++wrong;
      ++rounds;
    }
  };
  const at::Tensor a = at::randn({40, 600}).to(at::kHalf), b = at::randn({600, 30}).to(at::kHalf);
  const at::Tensor ours = at::mm(a, b), theirs = stock([&] { return at::mm(a, b); });
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) threads.emplace_back([&] { repeat(trains_one_step); });
  threads.emplace_back([&] {
    repeat([&] {
      const at::Tensor product = at::mm(a, b);
      return same_bits(product, ours) || same_bits(product, theirs);
    });
  });
  while (rounds < 2000) {
    for (int i = 0; i < 100; ++i) {
      disable_cpu_kernels();
      enable_cpu_kernels();
      enable_cpu_kernels_by_default();
    }
    std::this_thread::yield();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Overrides, DisablingRestoresLibtorchsBits) {
  disable_cpu_kernels();
  const at::Tensor a = at::randn({70, 500}).to(at::kHalf), b = at::randn({500, 30}).to(at::kHalf);
  const at::Tensor before = a.mm(b), other_order = a.to(at::kDouble).mm(b.to(at::kDouble)).to(at::kHalf);
  enable_cpu_kernels();
  const at::Tensor ours = a.mm(b);
  disable_cpu_kernels();
  EXPECT_TRUE(same_bits(a.mm(b), before));
  test::expect_within_bound(ours, a.to(at::kDouble).mm(b.to(at::kDouble)),
                            a.to(at::kDouble).abs().mm(b.to(at::kDouble).abs()), 500);
}

TEST_F(Overrides, TheDefaultDoesNotUndoDisable) {
  disable_cpu_kernels();
  enable_cpu_kernels_by_default();
  EXPECT_FALSE(cpu_kernels_enabled());
}

TEST_F(Overrides, TheEnvironmentSwitchesThemOff) {
  disable_cpu_kernels();
  ASSERT_EQ(setenv("MANTISSA_CPU_KERNELS", "0", 1), 0);
  EXPECT_FALSE(enable_cpu_kernels());
  EXPECT_FALSE(cpu_kernels_enabled());
  ASSERT_EQ(setenv("MANTISSA_CPU_KERNELS", "off", 1), 0);
  try {
    enable_cpu_kernels();
    ADD_FAILURE() << "no error";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("MANTISSA_CPU_KERNELS=off: choose 0"));
  }
  EXPECT_FALSE(cpu_kernels_enabled());
  ASSERT_EQ(setenv("MANTISSA_CPU_KERNELS", "1", 1), 0);
  EXPECT_TRUE(enable_cpu_kernels());
  unsetenv("MANTISSA_CPU_KERNELS");
}

struct Collect final : c10::WarningHandler {
  void process(const c10::Warning& warning) override { messages.push_back(warning.msg()); }
  std::vector<std::string> messages;
};

/// All forms, by what a program calls. `f` computes in whatever dtype its inputs have.
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

TEST_F(Overrides, EveryFormIsNearTheExactResult) {
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
      if (m < 16) continue;  // may be libtorch's, which rounds twice
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

TEST_F(Overrides, BetaZeroDoesNotReadSelf) {
  const at::Tensor nan = at::full({5, 6}, NAN).to(at::kHalf);
  const at::Tensor a = at::randn({5, 9}).to(at::kHalf), b = at::randn({9, 6}).to(at::kHalf);
  EXPECT_TRUE(same_bits(at::addmm(nan, a, b, 0), at::mm(a, b)));
  EXPECT_TRUE(same_bits(nan.clone().addmm_(a, b, 0), at::mm(a, b)));
  EXPECT_TRUE(at::addmm(nan, a, b, 1).isnan().all().item<bool>());
}

/// What is not computed here, or by the same rules: the results are libtorch's.
TEST_F(Overrides, OddCasesAreAsInLibtorch) {
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

TEST_F(Overrides, ErrorsAreLibtorchs) {
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
    const std::string ours = error_of(cases[i]);
    disable_cpu_kernels();
    EXPECT_EQ(ours, error_of(cases[i])) << "case " << i;
    enable_cpu_kernels();
  }
  EXPECT_NE(error_of(cases[0]), "none");
}

/// Memory that is read and written at once is libtorch's to multiply or to refuse.
TEST_F(Overrides, OutputsOverInputsAreLibtorchs) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // libtorch's own result over its input else depends on who comes first
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

/// What grows moves, and the input that lies in the same memory with it.
TEST_F(Overrides, AnOutputMayGrowInTheMemoryOfAnInput) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor start = at::randn({40, 40}).to(dtype);
    const int64_t size = 1 << 20;  // so large that it is given back to the system at once
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

TEST_F(Overrides, ResizingAnOutputWarnsAsInLibtorch) {
  Collect handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  at::Tensor out = at::ones({2, 2}, at::kHalf);
  at::mm_out(out, at::ones({4, 6}, at::kHalf), at::ones({6, 5}, at::kHalf));
  EXPECT_EQ(out.sizes(), (std::vector<int64_t>{4, 5}));
  EXPECT_THAT(handler.messages,
              testing::ElementsAre(testing::HasSubstr("An output with one or more elements was "
                                                      "resized")));
}

TEST_F(Overrides, GradientsAndTheirGradientsFlow) {
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
      // Several roundings to 16 bits in a row.
      const double error = ((ours[i].to(at::kDouble) - exact[i]).norm() / exact[i].norm()).item<double>();
      EXPECT_LT(error, dtype == at::kHalf ? 2e-3 : 1.6e-2) << i;
    }
  }
}

TEST_F(Overrides, AutocastAndInferenceModeReachThem) {
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
}  // namespace mantissa::overrides_test
