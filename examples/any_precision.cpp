// Your own loop in any precision: one string switches it between fp32, fp64, fp16 and bf16.
#include <cstdio>

#include <ATen/Context.h>
#include <torch/nn/functional/loss.h>

#include "mantissa/core/threads_apart.h"
#include "mantissa/data/digits.h"
#include "mantissa/data/loader.h"
#include "mantissa/models/convnet.h"
#include "mantissa/optim/sgd.h"
#include "mantissa/precision/registry.h"

int main(int argc, char** argv) {
  mantissa::keep_threads_apart();  // for a machine that is shared with other programs
  at::manual_seed(1);
  auto precision = mantissa::make_precision(argc > 1 ? argv[1] : "bf16-mixed", at::kCPU);
  auto run = precision->run_context();
  mantissa::Convnet model(mantissa::ConvnetOptions{.height = 8, .width = 8, .classes = 10});
  precision->convert_module(*model);
  mantissa::SGD optimizer(model->parameters(), mantissa::SGDOptions(0.05).momentum(0.9));
  precision->setup_optimizer(optimizer);
  mantissa::DataLoader loader(mantissa::load_digits(), {.batch_size = 32, .shuffle = true});
  double last_loss = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    loader.set_epoch(epoch);
    while (auto batch = loader.next()) {
      optimizer.zero_grad();
      at::Tensor loss;
      {
        auto forward = precision->forward_context();
        at::Tensor logits = model->forward(precision->convert_input(batch->data));
        loss = torch::nn::functional::cross_entropy(logits, batch->target);
      }
      precision->backward(loss);
      precision->clip_gradients(optimizer, 1.0);
      const auto step = precision->optimizer_step(optimizer);
      if (step.skipped()) std::puts("overflow: step skipped, scale lowered");
      last_loss = precision->convert_output(loss).item<double>();
    }
    std::printf("%s, epoch %d: last loss %.4f\n", precision->name().c_str(), epoch, last_loss);
  }
  return last_loss < 0.5 ? 0 : 1;
}
