// Your own loop: the PyTorch AMP recipe, line by line. Only two scope lines and three scaler lines are added.
#include <cstdio>

#include <ATen/Context.h>
#include <torch/nn/functional/loss.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/amp/clip_grad.h"
#include "mantissa/amp/grad_scaler.h"
#include "mantissa/core/threads_apart.h"
#include "mantissa/data/digits.h"
#include "mantissa/data/loader.h"
#include "mantissa/models/convnet.h"
#include "mantissa/optim/sgd.h"

int main() {
  mantissa::keep_threads_apart();  // for a machine that is shared with other programs
  at::manual_seed(1);
  mantissa::Convnet model(mantissa::ConvnetOptions{.height = 8, .width = 8, .classes = 10});
  mantissa::SGD optimizer(model->parameters(), mantissa::SGDOptions(0.05).momentum(0.9));
  mantissa::DataLoader loader(mantissa::load_digits(), {.batch_size = 32, .shuffle = true});
  mantissa::GradScaler scaler(at::kCPU);
  double loss_sum = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    loader.set_epoch(epoch);
    loss_sum = 0;
    while (auto batch = loader.next()) {
      optimizer.zero_grad();
      at::Tensor loss;
      {
        mantissa::Autocast autocast(at::kCPU, {.dtype = at::kHalf});
        loss = torch::nn::functional::cross_entropy(model->forward(batch->data), batch->target);
      }
      scaler.scale(loss).backward();
      scaler.unscale_(optimizer);
      mantissa::clip_grad_norm_(model->parameters(), 1.0);
      scaler.step(optimizer);
      scaler.update();
      loss_sum += loss.item<double>();
    }
    std::printf("epoch %d: loss %.4f, scale %.0f\n", epoch, loss_sum / static_cast<double>(loader.size()),
                scaler.get_scale());
  }
  return loss_sum / static_cast<double>(loader.size()) < 0.3 ? 0 : 1;
}
