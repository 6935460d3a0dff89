// Products of random shapes, layouts and factors compared with float64, by libtorch's functions and by every
// build. MANTISSA_PRODUCTS=N runs N of each instead of 300.
#include <cmath>
#include <cstdlib>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/cpu_features.h"
#include "mantissa/kernels/aten/choice.h"
#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/operand.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/kernels/cpu/gemm.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::random_products_test {
namespace {

class Generator {
 public:
  explicit Generator(uint64_t seed) : engine_(seed) { at::manual_seed(seed); }

  int64_t below(int64_t limit) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(limit)); }

  template <typename T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<size_t>(below(static_cast<int64_t>(values.size())))];
  }

  /// Returns a size that is mostly small and sometimes spans several tiles.
  int64_t size() {
    return one_of<int64_t>({1, 1 + below(4), 1 + below(20), 1 + below(20), 1 + below(70), 1 + below(300)});
  }

  int64_t depth() { return one_of<int64_t>({size(), size(), 1 + below(3000)}); }

  /// Returns a tensor in a random layout: adjacent rows, adjacent columns, neither, or expanded along either
  /// dimension.
  at::Tensor tensor(std::vector<int64_t> sizes, at::ScalarType dtype) {
    const double scale = one_of<double>({1, 1, 1, 0.01, 30});
    const auto random = [&](const std::vector<int64_t>& of) {
      return (one_of<int>({0, 1}) == 0 ? at::randn(of) : at::rand(of)).mul(scale).to(dtype);
    };
    const auto last = static_cast<int64_t>(sizes.size()) - 1;
    switch (below(8)) {
      case 0:
        if (last > 0) {
          std::swap(sizes[static_cast<size_t>(last)], sizes[static_cast<size_t>(last - 1)]);
          return random(sizes).transpose(last, last - 1);
        }
        return random(sizes);
      case 1: {
        sizes.push_back(2);
        return random(sizes).select(last + 1, 1);
      }
      case 2: {
        sizes[static_cast<size_t>(last)] += 3;
        return random(sizes).narrow(last, 1, sizes[static_cast<size_t>(last)] - 3);
      }
      case 3: {
        const int64_t along = below(last + 1), size = sizes[static_cast<size_t>(along)];
        sizes[static_cast<size_t>(along)] = 1;
        std::vector<int64_t> expanded = sizes;
        expanded[static_cast<size_t>(along)] = size;
        return random(sizes).expand(expanded);
      }
      case 4:
        if (last == 2) return random({sizes[1], sizes[0], sizes[2]}).transpose(0, 1);
        return random(sizes);
      default:
        return random(sizes);
    }
  }

 private:
  std::mt19937_64 engine_;
};

int64_t products_to_try() {
  const char* const asked = std::getenv("MANTISSA_PRODUCTS");
  return asked != nullptr ? std::atoll(asked) : 300;
}

at::Tensor widened(const at::Tensor& x) { return x.defined() ? x.to(at::kDouble) : x; }

struct Factors {
  double alpha = 1, beta = 1;
};

at::Tensor product(const std::string& form, const at::Tensor& a, const at::Tensor& b,
                   const at::Tensor& addend, const Factors& by) {
  if (form == "mm") return at::mm(a, b);
  if (form == "addmm") return at::addmm(addend, a, b, by.beta, by.alpha);
  if (form == "bmm") return at::bmm(a, b);
  if (form == "baddbmm") return at::baddbmm(addend, a, b, by.beta, by.alpha);
  if (form == "mv") return at::mv(a, b);
  if (form == "addmv") return at::addmv(addend, a, b, by.beta, by.alpha);
  return at::dot(a, b);
}

/// Our results keep the documented bound. libtorch's results have libtorch's bits and its errors: for
/// example, its addmv rounds both factors to the dtype, and rounds the scaled vector before it adds the
/// product.
void expect_within_the_bound_or_libtorchs(int64_t seed) {
  Generator random(static_cast<uint64_t>(seed));
  const auto dtype = random.one_of<at::ScalarType>({at::kBFloat16, at::kHalf});
  const auto form = random.one_of<std::string>({"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot"});
  const bool batched = form == "bmm" || form == "baddbmm", is_dot = form == "dot",
             has_vector = is_dot || form == "mv" || form == "addmv";
  kernels::Gemm g;
  g.m = is_dot ? 1 : random.size();
  g.n = has_vector ? 1 : random.size();
  g.k = random.depth();
  g.batch = batched ? 1 + random.below(5) : 1;
  g.a.element = dtype == at::kHalf ? kernels::Element::kFloat16 : kernels::Element::kBFloat16;
  std::vector<int64_t> a_sizes = {g.m, g.k}, b_sizes = {g.k, g.n}, sizes = {g.m, g.n};
  if (batched) a_sizes = {g.batch, g.m, g.k}, b_sizes = {g.batch, g.k, g.n}, sizes = {g.batch, g.m, g.n};
  if (has_vector) b_sizes = {g.k}, sizes = {g.m};
  if (is_dot) a_sizes = {g.k}, sizes = {};
  const at::Tensor a = random.tensor(a_sizes, dtype), b = random.tensor(b_sizes, dtype);
  at::Tensor addend;
  Factors by;
  if (form == "addmm" || form == "baddbmm" || form == "addmv") {
    addend = random.tensor(sizes, dtype);
    by = {random.one_of<double>({1, 1, 0.5, -1.3, 2}), random.one_of<double>({1, 0, 0.25, -0.7})};
  }
  SCOPED_TRACE(testing::Message() << "product " << seed << ": " << form << " in " << dtype << ", " << g.batch
                                  << " x " << g.m << " x " << g.n << " x " << g.k << ", alpha " << by.alpha
                                  << ", beta " << by.beta << ", strides " << a.strides() << " and "
                                  << b.strides());
  const at::Tensor got = product(form, a, b, addend, by);
  if (kernel_for(family_of(g, is_dot), g.a.element).tier) {
    const auto size_of = [](const at::Tensor& x) { return x.defined() ? widened(x).abs() : x; };
    test::expect_within_bound(
        got, product(form, widened(a), widened(b), widened(addend), by),
        product(form, size_of(a), size_of(b), size_of(addend), {std::abs(by.alpha), std::abs(by.beta)}), g.k);
  } else {
    disable_cpu_kernels();
    EXPECT_TRUE(test::same_bits(got, product(form, a, b, addend, by)));
    enable_cpu_kernels();
  }
}

TEST(RandomProducts, AreWithinTheBoundOrLibtorchs) {
  if (!enable_cpu_kernels()) GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0";
  // The test runs once with all products pinned to our own kernels, and once with some of them pinned to
  // libtorch's.
  const std::string own = tier_name(cpu_tier());
  for (const std::string& pins : {own, own + ",few_rows=libtorch,dot=libtorch,batched_product=libtorch"}) {
    SCOPED_TRACE(pins);
    pin_cpu_kernels(pins);
    for (int64_t i = 0; i < products_to_try() && !testing::Test::HasFailure(); ++i)
      expect_within_the_bound_or_libtorchs(i);
  }
  pin_cpu_kernels(own);
  disable_cpu_kernels();
}

class RandomGemm : public testing::TestWithParam<kernels::cpu::GemmBuild> {};

template <typename M>
M matrix(const at::Tensor& x) {
  return {x.data_ptr(), element_of(x.scalar_type()), x.stride(1), x.stride(2), x.stride(0)};
}

TEST_P(RandomGemm, IsWithinTheBound) {
  if (!cpu_features().includes(features_of(GetParam().tier)))
    GTEST_SKIP() << "no " << tier_name(GetParam().tier) << " here (or MANTISSA_MAX_ISA rules it out)";
  for (int64_t i = 0; i < products_to_try() && !HasFailure(); ++i) {
    Generator random(static_cast<uint64_t>(i));
    const auto dtype = random.one_of<at::ScalarType>({at::kBFloat16, at::kHalf});
    kernels::Gemm g;
    g.m = random.size();
    g.n = random.size();
    g.k = random.depth();
    g.batch = random.one_of<int64_t>({1, 1, 2, 5});
    const at::Tensor a = random.tensor({g.batch, g.m, g.k}, dtype),
                     b = random.tensor({g.batch, g.k, g.n}, dtype),
                     addend = random.tensor({g.batch, g.m, g.n},
                                            random.one_of<at::ScalarType>({dtype, at::kFloat}));
    const at::Tensor out = at::empty({g.batch, g.m, g.n}, random.one_of<at::ScalarType>({dtype, at::kFloat}));
    g.a = matrix<kernels::ConstMatrix>(a);
    g.b = matrix<kernels::ConstMatrix>(b);
    g.out = matrix<kernels::Matrix>(out);
    if (random.below(2) == 0) {
      g.addend = matrix<kernels::ConstMatrix>(addend);
      g.alpha = random.one_of<float>({1, 0.5F, -1.3F, 2});
      g.beta = random.one_of<float>({1, 0, 0.25F, -0.7F});
    }
    const double alpha = g.alpha, beta = g.addend.data == nullptr ? 0.0 : double{g.beta};
    SCOPED_TRACE(testing::Message() << "product " << i << ": " << dtype << " to " << out.scalar_type() << ", "
                                    << g.batch << " x " << g.m << " x " << g.n << " x " << g.k << ", alpha "
                                    << alpha << ", beta " << beta << ", strides " << a.strides() << " and "
                                    << b.strides());
    kernels::cpu::gemm(g, GetParam());
    test::expect_within_bound(out, at::baddbmm(widened(addend), widened(a), widened(b), beta, alpha),
                              at::baddbmm(widened(addend).abs(), widened(a).abs(), widened(b).abs(),
                                          std::abs(beta), std::abs(alpha)),
                              g.k);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryBuild, RandomGemm, testing::ValuesIn(kernels::cpu::gemm_builds()),
                         [](const auto& info) { return tier_name(info.param.tier); });

}  // namespace
}  // namespace mantissa::random_products_test
