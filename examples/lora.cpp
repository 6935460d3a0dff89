// QLoRA: fine-tunes a GPT whose weights are frozen in 4 bits. A text of numbers that count up is the base model's
// task, and one of numbers that count down the adapter's.
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/functional/loss.h>

#include "mantissa/core/threads_apart.h"
#include "mantissa/data/loader.h"
#include "mantissa/data/text.h"
#include "mantissa/lora/lora_model.h"
#include "mantissa/models/gpt.h"
#include "mantissa/optim/adamw.h"
#include "mantissa/precision/registry.h"

at::Tensor numbers(int from, int to) {
  std::string text;
  for (int n = from; n != to; n += from < to ? 1 : -1) text += std::to_string(n) + " ";
  return at::tensor(std::vector<uint8_t>(text.begin(), text.end()), at::kByte);
}

/// Trains for one pass over a text; returns the first and the last loss.
std::pair<double, double> train(mantissa::Precision& precision, mantissa::Gpt& model,
                                const at::Tensor& text) {
  mantissa::DataLoader loader(std::make_shared<mantissa::TextDataset>(text, /*context=*/32),
                              {.batch_size = 32, .shuffle = true});
  mantissa::AdamW optimizer(model->parameters(), mantissa::AdamWOptions(3e-3));
  precision.setup_optimizer(optimizer);
  double first = 0, last = 0;
  for (int64_t step = 0; auto batch = loader.next(); ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      auto forward = precision.forward_context();
      const at::Tensor logits = precision.convert_output(model->forward(batch->data));
      loss = torch::nn::functional::cross_entropy(logits.flatten(0, 1), batch->target.flatten());
    }
    precision.backward(loss);
    precision.optimizer_step(optimizer);
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  return {first, last};
}

int main(int argc, char** argv) {
  mantissa::keep_threads_apart();  // for a machine that is shared with other programs
  at::manual_seed(1);
  mantissa::Gpt model(mantissa::GptOptions{.layers = 2, .width = 64, .heads = 2, .context = 32});
  train(*mantissa::make_precision("32-true", at::kCPU), model, numbers(1000, 3000));

  auto precision = mantissa::make_precision("nf4-dq", at::kCPU);
  precision->convert_module(*model);  // the linear layers' weights are 4-bit codes from here on
  mantissa::LoraModel lora(*model, {.r = 8, .lora_alpha = 16});
  const auto [first, last] = train(*precision, model, numbers(3000, 1000));
  const auto [trained, all] = lora.get_nb_trainable_parameters();
  std::printf("%ld of %ld parameters trained: loss %.3f, then %.3f\n", trained, all, first, last);
  if (argc > 1) lora.save_pretrained(argv[1]);  // PEFT reads this folder
  return last < 0.7 * first ? 0 : 1;
}
