#include <algorithm>
#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/functorch/DynamicLayer.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/torch.h>

#include "mantissa/core/cpu_features.h"
#include "mantissa/kernels/aten/autocast_test_support_internal.h"
#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/kernels/test_support_internal.h"

namespace mantissa::autocast_test {
namespace {

using test::Region;
using test::same_bits;

/// Counts the casts from float32 to 16 bits by their number of elements.
class Casts {
 public:
  Casts() {
    handle_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function)
                                                                  -> std::unique_ptr<at::ObserverContext> {
                                     if (std::string(function.name()) != "aten::copy_") return nullptr;
                                     const at::Tensor to = function.inputs()[0].toTensor(),
                                                      from = function.inputs()[1].toTensor();
                                     if (to.scalar_type() != from.scalar_type())
                                       counted().push_back(from.numel());
                                     return nullptr;
                                   }).needsInputs(true));
    counted().clear();
  }
  ~Casts() { at::removeCallback(handle_); }
  Casts(const Casts&) = delete;
  Casts& operator=(const Casts&) = delete;
  static std::vector<int64_t>& counted() {
    thread_local std::vector<int64_t> counted;
    return counted;
  }

 private:
  at::CallbackHandle handle_ = 0;
};

using Product = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias)>;

struct Form {
  const char* name;
  Product product;
  bool has_bias;
  bool weight_is_transposed;     ///< [n, k]
  bool adds_bias_after = false;  ///< to the rounded product, in an operation that autocast does not handle
};

const std::vector<Form>& forms() {
  static const std::vector<Form> forms = {
      {"linear", [](auto& x, auto& w, auto& b) { return at::linear(x, w, b); }, true, true},
      {"linear without bias", [](auto& x, auto& w, auto&) { return at::linear(x, w); }, false, true},
      {"nn::functional::linear",
       [](auto& x, auto& w, auto& b) { return torch::nn::functional::linear(x, w, b); }, true, true, true},
      {"matmul", [](auto& x, auto& w, auto&) { return at::matmul(x, w); }, false, false},
      {"mm",
       [](auto& x, auto& w, auto&) {
         return at::mm(x.reshape({-1, x.size(-1)}), w);
       },
       false, false},
      {"addmm",
       [](auto& x, auto& w, auto& b) {
         return at::addmm(b, x.reshape({-1, x.size(-1)}), w);
       },
       true, false},
  };
  return forms;
}

struct Result {
  at::Tensor y, x_grad, w_grad, bias_grad;
};

class MixedProducts : public test::MixedProductsTest {
 protected:
  /// The cast of the marker that identifies a region, where a second use of a weight counts.
  static std::vector<int64_t> casts_of_a_region() {
    return reads_pairs() ? std::vector<int64_t>{1} : std::vector<int64_t>{};
  }

  /// True where a 16-bit copy is faster to read a second time.
  static bool reads_pairs() {
    return kernel_for(KernelFamily::kProduct, element()).tier == CpuTier::kAvx512Bf16;
  }

  /// Runs forward and backward of `form`. With `cast_first` it uses 16-bit copies, as autocast does.
  static Result run(const Form& form, const at::Tensor& x_in, const at::Tensor& w_in, const at::Tensor& b_in,
                    const at::Tensor& gradient, bool cast_first) {
    const at::Tensor x = x_in.detach().requires_grad_(), w = w_in.detach().requires_grad_(),
                     bias = b_in.detach().requires_grad_();
    at::Tensor y;
    if (cast_first) {
      const auto dtype = GetParam();
      const bool adds_after = form.adds_bias_after && x.dim() != 2;
      y = form.product(x.to(dtype), w.to(dtype), adds_after ? bias : bias.to(dtype));
    } else {
      const Region region(GetParam());
      y = form.product(x, w, bias);
    }
    y.backward(gradient.reshape(y.sizes()));
    return {y, x.grad(), w.grad(), bias.grad()};
  }
};

TEST_P(MixedProducts, EqualCastsAndProductsBitForBit) {
  struct Shape {
    at::DimVector x;
    int64_t n;
  };
  const std::vector<Shape> shapes = {{{4, 32, 64}, 48},  {{37, 19}, 23},     {{64, 500}, 1},
                                     {{2, 3, 5, 7}, 33}, {{1, 600}, 70},     {{700, 2}, 65},
                                     {{3, 1}, 3},        {{2, 64, 160}, 96}, {{128, 192}, 64}};
  for (const Shape& shape : shapes)
    for (const Form& form : forms()) {
      SCOPED_TRACE(std::string(form.name) + " of " + std::to_string(shape.x.back()) + " by " +
                   std::to_string(shape.n));
      const int64_t k = shape.x.back(), rows = c10::multiply_integers(shape.x) / k;
      // This program pins our kernels (choice_test.cpp). If one of the three products were libtorch's, the
      // sums would have another order.
      ASSERT_TRUE(is_ours(rows, shape.n, k) && is_ours(rows, k, shape.n) && is_ours(k, shape.n, rows));
      const at::Tensor x = at::randn(shape.x), bias = at::randn({shape.n});
      const at::Tensor w = form.weight_is_transposed ? at::randn({shape.n, k}) : at::randn({k, shape.n});
      const at::Tensor gradient = at::randn({rows, shape.n}).to(GetParam());
      const Result ours = run(form, x, w, bias, gradient, false),
                   theirs = run(form, x, w, bias, gradient, true);
      EXPECT_EQ(ours.y.scalar_type(), GetParam());
      EXPECT_TRUE(same_bits(ours.y.to(theirs.y.scalar_type()), theirs.y));
      EXPECT_TRUE(same_bits(ours.x_grad, theirs.x_grad));
      EXPECT_EQ(ours.w_grad.scalar_type(), at::kFloat);
      EXPECT_TRUE(same_bits(ours.w_grad, theirs.w_grad));
      EXPECT_EQ(ours.w_grad.strides(), w.strides());
      if (form.has_bias) {
        EXPECT_TRUE(same_bits(ours.bias_grad, theirs.bias_grad));
      }
    }
}

TEST_P(MixedProducts, CastNoWeight) {
  const at::Tensor x = at::randn({16, 40}).to(GetParam()).requires_grad_();
  const at::Tensor w = at::randn({24, 40}).requires_grad_(), bias = at::randn({24}).requires_grad_();
  const Casts casts;
  {
    const Region region(GetParam());
    at::linear(x, w, bias).sum().backward();
  }
  std::vector<int64_t> expected = casts_of_a_region();
  expected.push_back(24);
  EXPECT_EQ(Casts::counted(), expected) << "only the bias's gradient";
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
}

/// No copy is made or kept. (libtorch makes one per matrix of a batch, for a weight without gradients.)
TEST_P(MixedProducts, KeepNoCopyOfAWeight) {
  constexpr int64_t kRows = 32, kInputs = 512, kOutputs = 256;  // a copy is larger than everything else
  if (!is_ours(kRows, kOutputs, kInputs)) GTEST_SKIP() << "libtorch multiplies this here";
  const at::Tensor x = at::randn({kRows / 8, 8, kInputs}).to(GetParam()).transpose(0, 1).requires_grad_();
  const at::Tensor w = at::randn({kOutputs, kInputs}).requires_grad_();
  const Region region(GetParam());
  at::linear(x, w.detach().clone().requires_grad_());  // allocates what is made once per region
  const auto live = std::make_shared<test::LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  const at::Tensor y = at::linear(x, w);
  EXPECT_GE(live->now, kRows * kOutputs * 2);
  EXPECT_LT(live->now, kInputs * kOutputs);
  EXPECT_LT(live->peak, kInputs * kOutputs * 2);
  y.sum().backward();
  EXPECT_GE(live->now, kInputs * kOutputs * 4) << "its gradient";
  EXPECT_LT(live->now, kInputs * kOutputs * 5);
}

/// For example a recurrent layer's weight: on CPUs with 16-bit products, reading a float32 weight takes
/// longer than reading a copy.
TEST_P(MixedProducts, AWeightThatIsUsedAgainInARegionIsCastOnceWhereProductsAreFast) {
  constexpr int64_t kRows = 128, kInputs = 96, kOutputs = 112;
  if (!is_ours(kRows, kOutputs, kInputs)) GTEST_SKIP() << "libtorch multiplies this here";
  const at::Tensor x = at::randn({kRows, kInputs}).to(GetParam());
  const at::Tensor w = at::randn({kOutputs, kInputs}).requires_grad_(),
                   other = at::rand_like(w).requires_grad_();
  const auto casts_of = [&](const at::Tensor& weight) {
    const Casts casts;
    at::linear(x, weight);
    return std::count(Casts::counted().begin(), Casts::counted().end(), kInputs * kOutputs);
  };
  for (int i = 0; i < 2; ++i) {
    SCOPED_TRACE(i == 0 ? "one region" : "the next");
    const Region region(GetParam());
    EXPECT_EQ(casts_of(w), 0);
    EXPECT_EQ(casts_of(w), reads_pairs() ? 1 : 0);
    EXPECT_EQ(casts_of(w), 0) << "kept";
    EXPECT_EQ(casts_of(other), 0);
  }
  const Region region(GetParam());
  at::autocast::set_autocast_cache_enabled(false);
  for (int use = 0; use < 3; ++use) EXPECT_EQ(casts_of(w), 0) << "nothing would be kept without a cache";
  at::autocast::set_autocast_cache_enabled(true);
}

TEST_P(MixedProducts, GradientsOfAWeightThatIsUsedManyTimesAreThatOfItsUses) {
  const at::Tensor x = at::randn({128, 96}), w = at::randn({96, 96}).div_(10);
  const auto gradient = [&](bool mixed) {
    const at::Tensor weight = w.detach().requires_grad_();
    const auto run = [&] {
      at::Tensor y = x;
      for (int use = 0; use < 4; ++use) y = at::linear(y, weight);
      return y.to(at::kFloat).square().sum();
    };
    if (mixed) {
      const Region region(GetParam());
      run().backward();
    } else {
      run().backward();
    }
    return weight.grad();
  };
  const at::Tensor ours = gradient(true), exact = gradient(false);
  EXPECT_LT((ours - exact).norm().item<double>(), 0.02 * exact.norm().item<double>());
}

/// functorch's thread-local state outlives the transformation.
TEST_P(MixedProducts, CastNoWeightAfterATransformationOfFunctorch) {
  at::functorch::initAndPushDynamicLayer(at::functorch::TransformType::Vmap, /*batch_size=*/2,
                                         at::functorch::RandomnessType::Error);
  at::functorch::popDynamicLayerAndDeleteMetadata();
  const at::Tensor x = at::randn({16, 40}).to(GetParam()), w = at::randn({24, 40}).requires_grad_();
  const Casts casts;
  const Region region(GetParam());
  at::linear(x, w);
  EXPECT_EQ(Casts::counted(), casts_of_a_region());
}

TEST_P(MixedProducts, TakeWeightsInAnyLayout) {
  const at::Tensor x = at::randn({20, 12});
  const at::Tensor big = at::randn({3, 30, 3, 12});
  const at::Tensor slice = big.select(0, 1).select(1, 2);      // [30, 12], non-contiguous rows
  const at::Tensor column = at::randn({12, 30}).t();           // adjacent columns
  const at::Tensor row = at::randn({1, 12}).expand({30, 12});  // one row repeated
  for (const at::Tensor& w : {slice, column, row}) {
    const Form& form = forms()[0];
    const at::Tensor bias = at::randn({60}).slice(0, 0, 60, 2), gradient = at::randn({20, 30}).to(GetParam());
    const Result ours = run(form, x, w, bias, gradient, false),
                 theirs = run(form, x, w, bias, gradient, true);
    EXPECT_TRUE(same_bits(ours.y, theirs.y));
    EXPECT_TRUE(same_bits(ours.w_grad, theirs.w_grad));
    EXPECT_TRUE(same_bits(ours.x_grad, theirs.x_grad));
  }
}

TEST_P(MixedProducts, OnlyWhatIsAskedForIsComputed) {
  const at::Tensor x = at::randn({8, 16}), w = at::randn({8, 16}), bias = at::randn({8});
  for (int mask = 1; mask < 8; ++mask) {
    const at::Tensor a = x.detach().requires_grad_((mask & 1) != 0),
                     b = w.detach().requires_grad_((mask & 2) != 0),
                     c = bias.detach().requires_grad_((mask & 4) != 0);
    {
      const Region region(GetParam());
      at::linear(a, b, c).sum().backward();
    }
    EXPECT_EQ(a.grad().defined(), (mask & 1) != 0);
    EXPECT_EQ(b.grad().defined(), (mask & 2) != 0);
    EXPECT_EQ(c.grad().defined(), (mask & 4) != 0);
  }
}

TEST_P(MixedProducts, GradientsOfGradientsFlow) {
  const at::Tensor x = at::randn({16, 20}).div_(8).requires_grad_(),
                   w = at::randn({16, 20}).div_(8).requires_grad_();
  const auto second = [&](bool mixed) {
    at::Tensor y;
    if (mixed) {
      const Region region(GetParam());
      y = at::linear(x, w);
    } else {
      y = at::linear(x, w);
    }
    const at::Tensor loss = y.to(at::kFloat).pow(3).sum();
    const auto first = torch::autograd::grad({loss}, {x, w}, {}, true, /*create_graph=*/true);
    return torch::autograd::grad({first[0].pow(2).sum() + first[1].pow(2).sum()}, {x, w});
  };
  const auto ours = second(true), exact = second(false);
  for (size_t i = 0; i < 2; ++i)
    EXPECT_LT((ours[i] - exact[i]).norm().item<double>(), 0.03 * exact[i].norm().item<double>());
}

/// Backward is called without the dispatcher, which would have resolved the negation before an operation.
TEST_P(MixedProducts, AGradientWhoseSignsAreStillToBeChangedIsReadAsItIs) {
  const at::Tensor x = at::randn({8, 16}), w = at::randn({4, 16}), bias = at::randn({4});
  const at::Tensor gradient = at::randn({8, 4}).to(GetParam());
  const auto gradients = [&](const at::Tensor& start) {
    const at::Tensor a = x.detach().requires_grad_(), b = w.detach().requires_grad_(),
                     c = bias.detach().requires_grad_();
    const Region region(GetParam());
    return torch::autograd::grad({at::linear(a, b, c)}, {a, b, c}, {start});
  };
  const auto ours = gradients(at::_neg_view(gradient)), expected = gradients(gradient.neg());
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(ours[i], expected[i])) << i;
}

TEST_P(MixedProducts, AWeightUsedTwiceSumsItsGradientsInFloat32) {
  const at::Tensor x = at::eye(16), w = at::ones({16, 16}).requires_grad_();
  {
    const Region region(GetParam());
    (at::linear(x, w) + at::linear(x * 0x1p-14, w)).sum().backward();
  }
  EXPECT_TRUE(at::equal(w.grad(), at::full({16, 16}, 1 + 0x1p-14F)))
      << "in 16 bits the small one would vanish";
}

TEST_P(MixedProducts, WithoutGradients) {
  const at::Tensor x = at::randn({8, 16}), w = at::randn({4, 16}), bias = at::randn({4});
  at::Tensor recorded, no_grad, inference;
  const Region region(GetParam());
  recorded = at::linear(x, w.detach().requires_grad_(), bias);
  {
    const at::NoGradGuard guard;
    no_grad = at::linear(x, w, bias);
    EXPECT_FALSE(no_grad.requires_grad());
  }
  {
    const c10::InferenceMode guard;
    inference = at::linear(x, w, bias);
  }
  EXPECT_TRUE(same_bits(recorded, no_grad));
  EXPECT_TRUE(same_bits(recorded, inference));
}

TEST_P(MixedProducts, NothingIsRecordedBelowAutograd) {
  const at::Tensor x = at::randn({16, 16}), w = at::randn({16, 16}).requires_grad_();
  const Region region(GetParam());
  const at::Tensor recorded = at::linear(x, w);
  const auto expect_no_graph = [&](const at::Tensor& y) {
    EXPECT_FALSE(y.requires_grad());
    EXPECT_EQ(y.grad_fn(), nullptr);
    EXPECT_TRUE(same_bits(y, recorded.detach()));
  };
  {
    const at::AutoDispatchBelowAutograd guard;
    expect_no_graph(at::linear(x, w));
    expect_no_graph(at::linear(x.to(GetParam()), w));
    expect_no_graph(at::matmul(x, w.t()));
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  expect_no_graph(at::linear(x, w));
}

TEST_P(MixedProducts, AnInferenceTensorIsAWeightWhereItMayBe) {
  at::Tensor w;
  {
    const c10::InferenceMode guard;
    w = at::randn({16, 16});
  }
  const at::Tensor x = at::randn({16, 16}).requires_grad_();
  at::Tensor y;
  {
    const Region region(GetParam());
    y = at::linear(x, w);
  }
  y.sum().backward();
  EXPECT_TRUE(same_bits(x.grad(), at::ones({16, 16}, GetParam()).mm(w.to(GetParam())).to(at::kFloat)));
}

TEST_P(MixedProducts, KernelsThatAreSwitchedOffComputeNoGradients) {
  const at::Tensor x = at::randn({40, 600}), w = at::randn({30, 600});
  const auto gradients = [&](bool cast_first) {
    const at::Tensor input = x.detach().to(GetParam()).requires_grad_(), weight = w.detach().requires_grad_();
    at::Tensor y;
    if (cast_first) {
      y = at::linear(input, weight.to(GetParam()));
    } else {
      const Region region(GetParam());
      y = at::linear(input, weight);
    }
    disable_cpu_kernels();
    y.sum().backward();
    enable_cpu_kernels();
    return std::vector<at::Tensor>{input.grad(), weight.grad()};
  };
  const auto ours = gradients(false), theirs = gradients(true);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(ours[i], theirs[i])) << i;
}

TEST_P(MixedProducts, CastAWeightWhileTheyAreSwitchedOff) {
  const at::Tensor x = at::randn({16, 40}).to(GetParam()), w = at::randn({24, 40}).requires_grad_();
  disable_cpu_kernels();
  const Casts casts;
  const Region region(GetParam());
  at::linear(x, w);
  EXPECT_EQ(Casts::counted(), std::vector<int64_t>{24 * 40});
}

/// Calls that are not a product of activations and a weight behave as in libtorch, in results and errors.
TEST_P(MixedProducts, TheRestIsLibtorchs) {
  using Compute = std::function<at::Tensor()>;
  const at::Tensor x = at::randn({8, 16}), w = at::randn({4, 16}), bias = at::randn({4});
  const std::vector<std::pair<const char*, Compute>> cases = {
      {"float64", [&] { return at::linear(x.to(at::kDouble), w.to(at::kDouble)); }},
      {"an empty batch", [&] { return at::linear(x.slice(0, 0, 0), w, bias); }},
      {"no inputs", [&] { return at::linear(x.slice(1, 0, 0), w.slice(1, 0, 0), bias); }},
      {"a vector of weights", [&] { return at::matmul(x, w.select(0, 0)); }},
      {"a batch of weights",
       [&] {
         return at::matmul(x, w.t().expand({2, 16, 4}));
       }},
      {"beta", [&] { return at::addmm(bias, x, w.t(), 0.5); }},
      {"alpha", [&] { return at::addmm(bias, x, w.t(), 1, 2); }},
      {"a matrix added",
       [&] {
         return at::addmm(at::ones({8, 4}), x, w.t());
       }},
      {"a scalar added", [&] { return at::addmm(at::ones({1}), x, w.t()); }},
      {"a vector", [&] { return at::linear(x.select(0, 0), w, bias); }},
  };
  const Region region(GetParam());
  for (const auto& [what, compute] : cases) {
    SCOPED_TRACE(what);
    const at::Tensor ours = compute();
    disable_cpu_kernels();
    const at::Tensor theirs = compute();
    enable_cpu_kernels();
    EXPECT_EQ(ours.scalar_type(), theirs.scalar_type());
    EXPECT_EQ(ours.sizes(), theirs.sizes());
    if (theirs.numel() > 0) {
      const double scale = theirs.abs().max().item<double>();
      EXPECT_LE((ours - theirs).abs().max().item<double>(), 0x1p-7 * scale);
    }
  }
  EXPECT_THROW(at::linear(x, at::randn({4, 15})), c10::Error);
  EXPECT_THROW(at::linear(x, w, at::randn({5})), c10::Error);
  EXPECT_THROW(at::mm(x.view({2, 4, 16}), w.t()), c10::Error);
}

/// Forward-mode gradients go through libtorch's formulas.
TEST_P(MixedProducts, ForwardModeGradientsFlow) {
  const at::Tensor x = at::randn({3, 8}), w = at::randn({4, 8}), direction = at::randn({3, 8});
  const auto level = torch::autograd::ForwardADLevel::get_next_idx();
  const at::Tensor dual = x.view_as(x);
  dual._set_fw_grad(direction, level, /*is_inplace_op=*/false);
  at::Tensor tangent;
  {
    const Region region(GetParam());
    tangent = at::linear(dual, w)._fw_grad(level);
  }
  EXPECT_TRUE(at::allclose(tangent.to(at::kFloat), at::linear(direction, w), 0.02, 0.05));
  torch::autograd::ForwardADLevel::release_idx(level);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, MixedProducts, testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace mantissa::autocast_test
