#include "mantissa/kernels/aten/overrides.h"

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

#include "mantissa/kernels/aten/activation_internal.h"
#include "mantissa/kernels/aten/attention_internal.h"
#include "mantissa/kernels/aten/convolution_internal.h"
#include "mantissa/kernels/aten/matmul_internal.h"
#include "mantissa/kernels/aten/test_support_internal.h"
#include "mantissa/kernels/aten/unscale_internal.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::overrides_test {
namespace {

namespace aten = kernels::aten;

using test::same_bits;
using Compute = std::function<at::Tensor()>;

class Overrides : public test::WithCpuKernels {};

/// One operator: its call through the dispatcher, and direct calls of our kernel and libtorch's.
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
      {"mm", [=] { return at::mm(a, b); }, [=] { return aten::matmul::mm(a, b); },
       [=] { return stock::mm(a, b); }},
      {"mm.out", [=] { return out([&](auto& y) { at::mm_out(y, a, b); }); },
       [=] { return out([&](auto& y) { aten::matmul::mm_out(a, b, y); }); },
       [=] { return out([&](auto& y) { stock::mm_outf(a, b, y); }); }},
      {"addmm", [=] { return at::addmm(c, a, b, 2, 3); }, [=] { return aten::matmul::addmm(c, a, b, 2, 3); },
       [=] { return stock::addmm(c, a, b, 2, 3); }},
      {"addmm.out", [=] { return out([&](auto& y) { at::addmm_out(y, c, a, b, 2, 3); }); },
       [=] { return out([&](auto& y) { aten::matmul::addmm_out(c, a, b, 2, 3, y); }); },
       [=] { return out([&](auto& y) { stock::addmm_outf(c, a, b, 2, 3, y); }); }},
      {"addmm_", [=] { return in_place(c, [&](auto& y) { y.addmm_(a, b, 2, 3); }); },
       [=] { return in_place(c, [&](auto& y) { aten::matmul::addmm_(y, a, b, 2, 3); }); },
       [=] { return in_place(c, [&](auto& y) { stock::addmm_(y, a, b, 2, 3); }); }},
      {"_addmm_activation", [=] { return at::_addmm_activation(c, a, b, 1, 1, true); },
       [=] { return aten::matmul::addmm_activation(c, a, b, 1, 1, true); },
       [=] { return stock::_addmm_activation(c, a, b, 1, 1, true); }},
      {"bmm", [=] { return at::bmm(as, bs); }, [=] { return aten::matmul::bmm(as, bs); },
       [=] { return stock::bmm(as, bs); }},
      {"bmm.out", [=] { return out([&](auto& y) { at::bmm_out(y, as, bs); }); },
       [=] { return out([&](auto& y) { aten::matmul::bmm_out(as, bs, y); }); },
       [=] { return out([&](auto& y) { stock::bmm_outf(as, bs, y); }); }},
      {"baddbmm", [=] { return at::baddbmm(cs, as, bs, 2, 3); },
       [=] { return aten::matmul::baddbmm(cs, as, bs, 2, 3); },
       [=] { return stock::baddbmm(cs, as, bs, 2, 3); }},
      {"baddbmm.out", [=] { return out([&](auto& y) { at::baddbmm_out(y, cs, as, bs, 2, 3); }); },
       [=] { return out([&](auto& y) { aten::matmul::baddbmm_out(cs, as, bs, 2, 3, y); }); },
       [=] { return out([&](auto& y) { stock::baddbmm_outf(cs, as, bs, 2, 3, y); }); }},
      {"baddbmm_", [=] { return in_place(cs, [&](auto& y) { y.baddbmm_(as, bs, 2, 3); }); },
       [=] { return in_place(cs, [&](auto& y) { aten::matmul::baddbmm_(y, as, bs, 2, 3); }); },
       [=] { return in_place(cs, [&](auto& y) { stock::baddbmm_(y, as, bs, 2, 3); }); }},
      {"addmv", [=] { return at::addmv(w, a, v, 2, 3); }, [=] { return aten::matmul::addmv(w, a, v, 2, 3); },
       [=] { return stock::addmv(w, a, v, 2, 3); }},
      {"addmv.out", [=] { return out([&](auto& y) { at::addmv_out(y, w, a, v, 2, 3); }); },
       [=] { return out([&](auto& y) { aten::matmul::addmv_out(w, a, v, 2, 3, y); }); },
       [=] { return out([&](auto& y) { stock::addmv_outf(w, a, v, 2, 3, y); }); }},
      {"addmv_", [=] { return in_place(w, [&](auto& y) { y.addmv_(a, v, 2, 3); }); },
       [=] { return in_place(w, [&](auto& y) { aten::matmul::addmv_(y, a, v, 2, 3); }); },
       [=] { return in_place(w, [&](auto& y) { stock::addmv_(y, a, v, 2, 3); }); }},
      {"dot", [=] { return at::dot(x, x); }, [=] { return aten::matmul::dot(x, x); },
       [=] { return stock::dot(x, x); }},
      {"gelu", [=] { return at::gelu(x); }, [=] { return aten::activation::gelu(x, "none"); },
       [=] { return stock::gelu(x, "none"); }},
      {"gelu_", [=] { return in_place(x, [&](auto& y) { at::gelu_(y); }); },
       [=] { return in_place(x, [&](auto& y) { aten::activation::gelu_(y, "none"); }); },
       [=] { return in_place(x, [&](auto& y) { stock::gelu_(y, "none"); }); }},
      {"gelu_backward", [=] { return at::gelu_backward(x, x); },
       [=] { return aten::activation::gelu_backward(x, x, "none"); },
       [=] { return stock::gelu_backward(x, x, "none"); }},
      {"attention", [=] { return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v4)); },
       [=] { return std::get<0>(aten::attention::forward(q, k, v4, 0, false, {}, {})); },
       [=] { return std::get<0>(stock::_scaled_dot_product_flash_attention_for_cpu(q, k, v4)); }},
      {"attention's gradient",
       [=, attention = attention, sums = sums] {
         return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu_backward(
             gradient, q, k, v4, attention, sums, 0, false));
       },
       [=, attention = attention, sums = sums] {
         return std::get<0>(aten::attention::backward(gradient, q, k, v4, attention, sums, 0, false, {}, {}));
       },
       [=, attention = attention, sums = sums] {
         return std::get<0>(stock::_scaled_dot_product_flash_attention_for_cpu_backward(
             gradient, q, k, v4, attention, sums, 0, false));
       }},
      {"convolution", [=] { return at::convolution(images, kernel, {}, one, none, one, false, none, 1); },
       [=] {
         return aten::convolution::forward(images, kernel, {}, one, none, one, false, none, 1, false, false,
                                           false, false);
       },
       [=] { return composite::convolution(images, kernel, {}, one, none, one, false, none, 1); }},
      {"convolution_backward",
       [=] {
         return std::get<1>(at::convolution_backward(result, images, kernel, {}, one, none, one, false, none,
                                                     1, {false, true, false}));
       },
       [=] {
         return std::get<1>(aten::convolution::backward(result, images, kernel, {}, one, none, one, false,
                                                        none, 1, {false, true, false}));
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
           aten::unscale::non_finite_check_and_unscale_(gradients, found_inf, inv_scale);
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
  int distinguished = 0;
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const Call& call : calls(dtype)) {
      SCOPED_TRACE(std::string(call.name) + " of " + c10::toString(dtype));
      const at::Tensor ours = call.ours();
      EXPECT_TRUE(same_bits(call.dispatched(), ours));
      disable_cpu_kernels();
      const at::Tensor theirs = call.stock();  // it calls other operators, too
      EXPECT_TRUE(same_bits(call.dispatched(), theirs));
      enable_cpu_kernels();
      EXPECT_TRUE(same_bits(call.dispatched(), ours));
      distinguished += same_bits(ours, theirs) ? 0 : 1;
    }
  EXPECT_GT(distinguished, 0) << "no operator's bits differ between the two: nothing was tested";
}

/// Trains with a sum of small integers, which every kernel computes exactly.
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

/// While a call runs in libtorch's autocast or below it, the functions that it will call must remain.
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

}  // namespace
}  // namespace mantissa::overrides_test
