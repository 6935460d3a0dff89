// The cases of PyTorch's AMP recipe, each a function that can be copied:
//
//   example_amp_recipes default|clipping|accumulation|gradient_penalty|several_models|custom_function|validation|
//                       disabled_region|metrics
//
// Each one trains on the embedded digits in fp16 on the CPU, and exits with 1 if it did not learn.
#include <cstdio>
#include <map>
#include <string>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/amp/clip_grad.h"
#include "mantissa/amp/custom_function.h"
#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/keep_in_fp32.h"
#include "mantissa/core/threads_apart.h"
#include "mantissa/data/digits.h"
#include "mantissa/data/loader.h"
#include "mantissa/models/convnet.h"
#include "mantissa/optim/sgd.h"

namespace {

using mantissa::Autocast;
using mantissa::Convnet;
using mantissa::GradScaler;
using mantissa::SGD;
using torch::nn::functional::cross_entropy;

Convnet make_model() { return Convnet(mantissa::ConvnetOptions{.height = 8, .width = 8, .classes = 10}); }
mantissa::SGDOptions options() { return mantissa::SGDOptions(0.05).momentum(0.9); }

/// Trains on 200 batches of 32.
template <typename Step>
double train(const Step& step) {
  mantissa::DataLoader loader(mantissa::load_digits(), {.batch_size = 32, .shuffle = true});
  double last = 0;
  int64_t count = 0;
  for (int epoch = 0; count < 200; ++epoch) {
    loader.set_epoch(epoch);
    while (auto batch = loader.next()) {
      last += 0.1 * (step(*batch, count) - last);  // a running mean, because a single batch says little
      if (++count == 200) break;
    }
  }
  return last;
}

/// The autocast region ends before backward(). Autograd runs each backward operation in the dtype of its forward
/// operation without it.
double default_case() {
  Convnet model = make_model();
  SGD optimizer(model->parameters(), options());
  GradScaler scaler(at::kCPU);
  return train([&](const mantissa::Batch& batch, int64_t) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      Autocast autocast(at::kCPU, {.dtype = at::kHalf});
      loss = cross_entropy(model->forward(batch.data), batch.target);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    return loss.item<double>();
  });
}

/// Gradients are multiplied by the loss scale until unscale_() divides them, so clip them after that.
double clipping() {
  Convnet model = make_model();
  SGD optimizer(model->parameters(), options());
  GradScaler scaler(at::kCPU);
  return train([&](const mantissa::Batch& batch, int64_t) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      Autocast autocast(at::kCPU, {.dtype = at::kHalf});
      loss = cross_entropy(model->forward(batch.data), batch.target);
    }
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    mantissa::clip_grad_norm_(model->parameters(), 1.0);
    scaler.step(optimizer);  // it knows that they are unscaled
    scaler.update();
    return loss.item<double>();
  });
}

/// Gradients that are accumulated must have the same scale: step and update only at the end of a window.
double accumulation() {
  constexpr int kWindow = 2;
  Convnet model = make_model();
  SGD optimizer(model->parameters(), options());
  GradScaler scaler(at::kCPU);
  return train([&](const mantissa::Batch& batch, int64_t count) {
    at::Tensor loss;
    {
      Autocast autocast(at::kCPU, {.dtype = at::kHalf});
      loss = cross_entropy(model->forward(batch.data), batch.target);
    }
    scaler.scale(loss / kWindow).backward();
    if ((count + 1) % kWindow == 0) {
      scaler.step(optimizer);
      scaler.update();
      optimizer.zero_grad();
    }
    return loss.item<double>();
  });
}

/// The penalty is a function of gradients: those of the scaled loss, unscaled by hand, because scaler.scale()
/// will scale the penalty together with the rest of the loss.
double gradient_penalty() {
  Convnet model = make_model();
  SGD optimizer(model->parameters(), options());
  GradScaler scaler(at::kCPU);
  return train([&](const mantissa::Batch& batch, int64_t) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      Autocast autocast(at::kCPU, {.dtype = at::kHalf});
      loss = cross_entropy(model->forward(batch.data), batch.target);
    }
    const auto scaled = torch::autograd::grad({scaler.scale(loss)}, model->parameters(), /*grad_outputs=*/{},
                                              /*retain_graph=*/true, /*create_graph=*/true);
    const double inv_scale = 1 / scaler.get_scale();
    at::Tensor total;
    {
      Autocast autocast(at::kCPU, {.dtype = at::kHalf});
      at::Tensor penalty = at::zeros({});
      for (const at::Tensor& gradient : scaled) penalty = penalty + (gradient * inv_scale).square().sum();
      total = loss + 1e-4 * penalty.sqrt();
    }
    scaler.scale(total).backward();
    scaler.step(optimizer);
    scaler.update();
    return loss.item<double>();
  });
}

/// One scaler for all optimizers: each one skips its step by its own gradients, and one update() ends the
/// iteration.
double several_models() {
  Convnet model0 = make_model(), model1 = make_model();
  SGD optimizer0(model0->parameters(), options()), optimizer1(model1->parameters(), options());
  GradScaler scaler(at::kCPU);
  return train([&](const mantissa::Batch& batch, int64_t) {
    optimizer0.zero_grad();
    optimizer1.zero_grad();
    at::Tensor loss0, loss1;
    {
      Autocast autocast(at::kCPU, {.dtype = at::kHalf});
      const at::Tensor logits0 = model0->forward(batch.data), logits1 = model1->forward(batch.data);
      loss0 = cross_entropy(logits0 + logits1, batch.target);
      loss1 = cross_entropy(logits1, batch.target);
    }
    scaler.scale(loss0).backward(/*gradient=*/{}, /*retain_graph=*/true);  // because the losses share a graph
    scaler.scale(loss1).backward();
    scaler.unscale_(optimizer0);  // so that this optimizer's gradients can be inspected
    scaler.step(optimizer0);
    scaler.step(optimizer1);
    scaler.update();
    return loss1.item<double>();
  });
}

/// A function whose exponentials need float32's range.
struct LogSumExp : torch::autograd::Function<LogSumExp> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x_in) {
    const mantissa::CustomForward scope(ctx, at::kCPU, {.cast_inputs = at::kFloat});
    const auto [x] = scope.inputs(x_in);
    const at::Tensor e = x.exp(), sum = e.sum(-1, /*keepdim=*/true);
    ctx->save_for_backward({e, sum});
    return sum.log();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    const mantissa::CustomBackward scope(ctx);
    const auto saved = ctx->get_saved_variables();
    return {gradients[0] * saved[0] / saved[1]};
  }
};

double custom_function() {
  Convnet model = make_model();
  SGD optimizer(model->parameters(), options());
  GradScaler scaler(at::kCPU);
  return train([&](const mantissa::Batch& batch, int64_t) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      Autocast autocast(at::kCPU, {.dtype = at::kHalf});
      const at::Tensor logits = model->forward(batch.data);
      loss = (LogSumExp::apply(logits) - logits.gather(-1, batch.target.unsqueeze(-1))).mean();
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    return loss.item<double>();
  });
}

/// Validation needs the region, to get the same numbers at the same speed, but no scaler, because it computes
/// no gradients.
double validation() {
  Convnet model = make_model();
  SGD optimizer(model->parameters(), options());
  GradScaler scaler(at::kCPU);
  train([&](const mantissa::Batch& batch, int64_t) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      Autocast autocast(at::kCPU, {.dtype = at::kHalf});
      loss = cross_entropy(model->forward(batch.data), batch.target);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    return loss.item<double>();
  });
  model->eval();
  const at::NoGradGuard no_grad;
  mantissa::DataLoader loader(mantissa::load_digits(), {.batch_size = 256});
  double loss_sum = 0;
  while (auto batch = loader.next()) {
    Autocast autocast(at::kCPU, {.dtype = at::kHalf});
    loss_sum += cross_entropy(model->forward(batch->data), batch->target).item<double>();
  }
  return loss_sum / static_cast<double>(loader.size());
}

/// Code that needs float32's range or precision runs in a disabled region, on inputs that are cast up.
double disabled_region() {
  Convnet model = make_model();
  SGD optimizer(model->parameters(), options());
  GradScaler scaler(at::kCPU);
  return train([&](const mantissa::Batch& batch, int64_t) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      Autocast autocast(at::kCPU, {.dtype = at::kHalf});
      const at::Tensor logits = model->forward(batch.data);
      {
        Autocast disabled(at::kCPU, {.enabled = false});
        loss = cross_entropy(logits.to(at::kFloat), batch.target);
      }
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    return loss.item<double>();
  });
}

/// A counter in fp16 does not get beyond 2048. Metrics are therefore computed in float32, or as here in float64.
double metrics() {
  Convnet model = make_model();
  mantissa::keep_in_fp32(*model, "head");  // the logits are float32, too, without a change to the model
  SGD optimizer(model->parameters(), options());
  GradScaler scaler(at::kCPU);
  double right = 0, seen = 0;
  const double loss = train([&](const mantissa::Batch& batch, int64_t count) {
    optimizer.zero_grad();
    at::Tensor batch_loss, logits;
    {
      Autocast autocast(at::kCPU, {.dtype = at::kHalf});
      logits = model->forward(batch.data);
      batch_loss = cross_entropy(logits, batch.target);
    }
    scaler.scale(batch_loss).backward();
    scaler.step(optimizer);
    scaler.update();
    if (count >= 150) {
      right += logits.argmax(-1).eq(batch.target).sum().item<double>();
      seen += static_cast<double>(batch.target.numel());
    }
    return batch_loss.to(at::kDouble).item<double>();
  });
  std::printf("accuracy of the last 50 batches: %.4f\n", right / seen);
  return right / seen > 0.9 ? loss : 1;
}

}  // namespace

int main(int argc, char** argv) {
  mantissa::keep_threads_apart();  // for a machine that is shared with other programs
  const std::map<std::string, double (*)()> cases{{"default", &default_case},
                                                  {"clipping", &clipping},
                                                  {"accumulation", &accumulation},
                                                  {"gradient_penalty", &gradient_penalty},
                                                  {"several_models", &several_models},
                                                  {"custom_function", &custom_function},
                                                  {"validation", &validation},
                                                  {"disabled_region", &disabled_region},
                                                  {"metrics", &metrics}};
  const auto chosen = cases.find(argc > 1 ? argv[1] : "default");
  if (chosen == cases.end()) {
    for (const auto& [name, run] : cases) std::printf("example_amp_recipes %s\n", name.c_str());
    return 2;
  }
  at::manual_seed(1);
  const double loss = chosen->second();
  std::printf("%s: loss %.4f\n", chosen->first.c_str(), loss);
  return loss < 0.5 ? 0 : 1;
}
