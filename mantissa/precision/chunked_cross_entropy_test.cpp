#include "mantissa/precision/chunked_cross_entropy.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/precision/registry.h"

namespace mantissa::chunked_cross_entropy_test {
namespace {

using testing::HasSubstr;

/// An output layer after a hidden one, in a mode.
struct Net {
  explicit Net(const std::string& name) : mode(make_precision(name, at::kCPU)) {
    torch::manual_seed(1);
    layers =
        torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::Linear(16, 16), torch::nn::Linear(16, 50));
    mode->convert_module(*layers);
    optimizer = std::make_unique<torch::optim::SGD>(layers->parameters(), 0.1);
    mode->setup_optimizer(*optimizer);
  }
  at::Tensor hidden(const at::Tensor& x) {
    return layers[1]->as<torch::nn::Linear>()->forward(
        layers[0]->as<torch::nn::Linear>()->forward(mode->convert_input(x)));
  }
  at::Tensor output(const at::Tensor& x) {
    rows = std::max(rows, x.size(0));
    return layers[2]->as<torch::nn::Linear>()->forward(x);
  }
  std::function<at::Tensor(const at::Tensor&)> output_layer() {
    return [this](const at::Tensor& x) { return output(x); };
  }
  at::Tensor whole(const at::Tensor& x, const at::Tensor& target) {
    const at::Tensor logits = output(hidden(x)).flatten(0, -2);
    const bool reduced = logits.scalar_type() == at::kHalf || logits.scalar_type() == at::kBFloat16;
    return at::cross_entropy_loss(reduced ? logits.to(at::kFloat) : logits, target.flatten());
  }
  /// Returns the loss and every gradient.
  std::pair<at::Tensor, std::vector<at::Tensor>> step(const at::Tensor& x, const at::Tensor& target,
                                                      int64_t chunk) {
    at::Tensor loss;
    {
      const Scope scope = mode->forward_context();
      loss = chunk == 0 ? whole(x, target) : chunked_cross_entropy(output_layer(), hidden(x), target, chunk);
    }
    mode->backward(loss);
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& p : layers->parameters()) gradients.push_back(p.grad().to(at::kDouble));
    return {loss.detach(), gradients};
  }
  std::unique_ptr<Precision> mode;
  torch::nn::Sequential layers{nullptr};
  std::unique_ptr<torch::optim::SGD> optimizer;
  int64_t rows = 0;  ///< the most positions whose logits were computed at a time
};

double relative_error(const at::Tensor& got, const at::Tensor& want) {
  return ((got - want).norm() / want.norm()).item<double>();
}

struct ModeTolerance {
  const char* mode;
  /// Relative. Products of other lengths may sum in another order, which turns a 16-bit logit, and a 16-bit gradient is
  /// rounded once per chunk.
  double loss, gradient;
};

TEST(ChunkedCrossEntropy, EqualsThatOfAllLogits) {
  const at::Tensor x = torch::randn({2, 15, 8});
  at::Tensor target = torch::randint(50, {2, 15}, torch::kLong);
  target[0][3] = -100, target[1].narrow(0, 0, 4).fill_(-100);
  for (const ModeTolerance& row : {ModeTolerance{"64-true", 1e-14, 1e-13},
                                   {"32-true", 1e-6, 1e-5},
                                   {"bf16-mixed", 1e-3, 2e-2},
                                   {"16-mixed", 1e-3, 5e-3},
                                   {"bf16-true", 1e-3, 3e-2},
                                   {"fp8-mixed", 1e-3, 2e-2}}) {
    for (const int64_t chunk : {1, 7, 30, 1000}) {
      SCOPED_TRACE(std::string(row.mode) + ", " + std::to_string(chunk));
      Net plain(row.mode), chunked(row.mode);
      const auto [want, want_gradients] = plain.step(x, target, 0);
      const auto [got, gradients] = chunked.step(x, target, chunk);
      EXPECT_NEAR(got.item<double>() / want.item<double>(), 1, row.loss);
      for (size_t i = 0; i < gradients.size(); ++i)
        EXPECT_LE(relative_error(gradients[i], want_gradients[i]), row.gradient) << i;
      EXPECT_EQ(chunked.rows, std::min<int64_t>(chunk, 30));
    }
  }
}

TEST(ChunkedCrossEntropy, ScoresAreThoseOfAllLogits) {
  Net net("32-true");
  const at::Tensor x = torch::randn({40, 8}), target = torch::randint(50, {40}, torch::kLong);
  const torch::NoGradGuard no_grad;
  const at::Tensor logits = net.output(net.hidden(x));
  const at::Tensor mixed = torch::where(torch::arange(40) % 3 == 0, logits.argmax(-1), target);
  const ChunkedScores scores = chunked_scores(net.output_layer(), net.hidden(x), mixed, 9);
  EXPECT_FALSE(scores.loss.requires_grad());
  EXPECT_NEAR(scores.loss.item<double>(), at::cross_entropy_loss(logits, mixed).item<double>(), 1e-5);
  EXPECT_EQ(scores.correct.item<int64_t>(), logits.argmax(-1).eq(mixed).sum().item<int64_t>());
  EXPECT_GE(scores.correct.item<int64_t>(), 14);
}

TEST(ChunkedCrossEntropy, WithoutPositionsThatCountItIsNanAsTorchsIs) {
  Net net("32-true");
  const at::Tensor x = torch::randn({4, 8}), ignored = torch::full({4}, -100, torch::kLong);
  EXPECT_TRUE(chunked_cross_entropy(net.output_layer(), net.hidden(x), ignored, 3).isnan().item<bool>());
  EXPECT_TRUE(net.whole(x, ignored).isnan().item<bool>());
}

TEST(ChunkedCrossEntropy, ANonFiniteLogitReachesTheLoss) {
  Net net("32-true");
  at::Tensor x = torch::randn({6, 8});
  x[4][1] = std::numeric_limits<float>::infinity();
  const at::Tensor target = torch::zeros({6}, torch::kLong);
  EXPECT_FALSE(chunked_cross_entropy(net.output_layer(), net.hidden(x), target, 2).isfinite().item<bool>());
}

TEST(ChunkedCrossEntropy, RefusesWhatDoesNotFit) {
  Net net("32-true");
  const at::Tensor hidden = torch::randn({2, 3, 16}), target = torch::zeros({2, 3}, torch::kLong);
  const auto loss = [&](const at::Tensor& h, const at::Tensor& t, int64_t chunk) {
    return error_of<c10::ValueError>([&] { chunked_cross_entropy(net.output_layer(), h, t, chunk); });
  };
  EXPECT_THAT(loss(hidden, target, 0), HasSubstr("a chunk of 0 positions"));
  EXPECT_THAT(loss(hidden, target[0], 4), HasSubstr("hidden states [2, 3, 16] do not fit targets [3]"));
  EXPECT_THAT(loss(hidden, target.narrow(1, 0, 2), 4), HasSubstr("do not fit targets [2, 2]"));
  EXPECT_THAT(loss(hidden, {}, 4), HasSubstr("do not fit targets (none)"));
  EXPECT_THAT(loss(hidden[0][0], target[0][0], 4), HasSubstr("do not fit targets []"));
  EXPECT_THAT(error_of<c10::ValueError>([&] { chunked_scores(nullptr, hidden, target, 4); }),
              HasSubstr("no output layer"));
  EXPECT_THROW(chunked_cross_entropy(net.output_layer(), hidden, target + 50, 4), c10::IndexError);
}

}  // namespace
}  // namespace mantissa::chunked_cross_entropy_test
