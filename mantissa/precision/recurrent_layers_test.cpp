// Recurrent layers in every 16-bit mode. libtorch passes an LSTM on the CPU to oneDNN, which cannot train one
// in fp16 on most CPUs, nor in bf16 on some.
#include <cmath>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "mantissa/kernels/aten/overrides.h"
#include "mantissa/precision/registry.h"

namespace mantissa::recurrent_layers_test {
namespace {

constexpr int64_t kSteps = 5, kSamples = 4, kInputs = 6, kHidden = 8;

struct Shape {
  std::string name;
  int64_t layers = 1;
  bool bidirectional = false;
  double dropout = 0;
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all{{"OneLayer"},
                                      {"TwoLayers", 2},
                                      {"BothWays", 1, true},
                                      {"TwoLayersBothWays", 2, true},
                                      {"Dropout", 2, true, 0.25}};
  return all;
}

template <typename Layer, typename Options>
Layer made_layer(const Shape& shape) {
  return Layer(Options(kInputs, kHidden)
                   .num_layers(shape.layers)
                   .bidirectional(shape.bidirectional)
                   .dropout(shape.dropout));
}

/// A recurrent layer of any kind, whose outputs go through one linear layer.
struct Net final : torch::nn::Module {
  Net(std::string kind, const Shape& shape) : kind_(std::move(kind)) {
    if (kind_ == "LSTM")
      register_module("lstm", lstm = made_layer<torch::nn::LSTM, torch::nn::LSTMOptions>(shape));
    if (kind_ == "GRU")
      register_module("gru", gru = made_layer<torch::nn::GRU, torch::nn::GRUOptions>(shape));
    if (kind_ == "RNN")
      register_module("rnn", rnn = made_layer<torch::nn::RNN, torch::nn::RNNOptions>(shape));
    register_module("head", head = torch::nn::Linear(kHidden * (shape.bidirectional ? 2 : 1), 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = kind_ == "LSTM"  ? std::get<0>(lstm(x))
                         : kind_ == "GRU" ? std::get<0>(gru(x))
                                          : std::get<0>(rnn(x));
    return head(y).to(at::kFloat);
  }
  std::string kind_;
  torch::nn::LSTM lstm{nullptr};
  torch::nn::GRU gru{nullptr};
  torch::nn::RNN rnn{nullptr};
  torch::nn::Linear head{nullptr};
};

using Row = std::tuple<std::string, std::string, Shape>;

class RecurrentLayers : public testing::TestWithParam<Row> {
 protected:
  void SetUp() override {
    if (!enable_cpu_kernels()) GTEST_SKIP() << "MANTISSA_CPU_KERNELS=0";
    torch::manual_seed(3);
    x_ = torch::randn({kSteps, kSamples, kInputs});
    y_ = 1 + x_.cumsum(0).sum(2, /*keepdim=*/true).tanh();
  }
  static std::string mode() { return std::get<0>(GetParam()); }
  static std::shared_ptr<Net> net() {
    torch::manual_seed(4);
    return std::make_shared<Net>(std::get<1>(GetParam()), std::get<2>(GetParam()));
  }

  /// Returns the losses of `steps` steps in `mode`; the gradients of the last step remain.
  std::vector<double> train(const std::string& mode, Net& net, int steps) {
    PrecisionOptions options;
    if (mode == "16-mixed" || mode == "O2") options.init_scale = 256;  // no overflows in the first steps
    const auto precision = make_precision(mode, at::kCPU, options);
    precision->convert_module(net);
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    precision->setup_optimizer(optimizer);
    std::vector<double> losses;
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      at::Tensor loss;
      {
        const Scope scope = precision->forward_context();
        loss = torch::mse_loss(net.forward(precision->convert_input(x_)), y_);
      }
      precision->backward(loss);
      precision->unscale_gradients(optimizer);
      gradients_.clear();
      for (const at::Tensor& parameter : main_params(optimizer))
        gradients_.push_back(parameter.grad().to(at::kFloat).clone());
      precision->optimizer_step(optimizer);
      losses.push_back(loss.item<double>());
    }
    return losses;
  }

  at::Tensor x_, y_;
  std::vector<at::Tensor> gradients_;
};

TEST_P(RecurrentLayers, GradientsAreThoseOfFloat32) {
  if (std::get<2>(GetParam()).dropout > 0) GTEST_SKIP() << "the masks depend on the dtype";
  const auto narrow = net(), wide = net();
  const double loss = train(mode(), *narrow, 1)[0];
  const std::vector<at::Tensor> got = gradients_;
  const double want_loss = train("32-true", *wide, 1)[0];
  const std::vector<at::Tensor> want = gradients_;
  const double ulp = mode().starts_with("bf16") ? 0x1p-8 : 0x1p-11;  // the largest error of one rounding
  // A value passes some ten roundings in each of the five steps, forward and backward. 100 random roundings
  // add up to about 10 ulp, and to 40 with room for the slopes of the activations.
  EXPECT_NEAR(loss, want_loss, 40 * ulp * want_loss);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const auto norm = want[i].norm().item<double>();
    EXPECT_GT(norm, 0) << "parameter " << i;
    EXPECT_LE((got[i] - want[i]).norm().item<double>(), 40 * ulp * norm) << "parameter " << i;
  }
}

TEST_P(RecurrentLayers, TrainsAndValidates) {
  const auto model = net();
  const std::vector<double> losses = train(mode(), *model, 40);
  EXPECT_LT(losses.back(), 0.8 * losses.front());
  for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss));
  // Without gradients libtorch may use different code for the layer.
  model->eval();
  const at::NoGradGuard no_grad;
  const auto precision = make_precision(mode(), at::kCPU);
  const Scope scope = precision->forward_context();
  const at::Tensor y = model->forward(precision->convert_input(x_));
  EXPECT_TRUE(at::isfinite(y).all().item<bool>());
  EXPECT_LT(torch::mse_loss(y, y_).item<double>(), losses.front());
}

INSTANTIATE_TEST_SUITE_P(SixteenBits, RecurrentLayers,
                         testing::Combine(testing::Values("16-mixed", "bf16-mixed", "16-true", "bf16-true",
                                                          "O2"),
                                          testing::Values("LSTM", "GRU", "RNN"), testing::ValuesIn(shapes())),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param) + "_" + std::get<1>(info.param) + "_" +
                                              std::get<2>(info.param).name;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace mantissa::recurrent_layers_test
