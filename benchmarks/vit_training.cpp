// Trains a Vision Transformer of torchvision's form with activation checkpointing, for benchmarks/vit_training.py.
//
//     vit_training_bench IN OUT MODE STEPS LAYERS WIDTH HEADS MLP IMAGE
//
// IN has the weights under torchvision's names, and OUT + ".batch" has "images" and "labels". OUT receives "loss" and "step_ms",
// one number a step, and "peak_mib" in safetensors.
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tensor.h>

#include "benchmarks/process_memory_internal.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/models/vit.h"
#include "mantissa/models/weight_form.h"
#include "mantissa/optim/fused_adam.h"
#include "mantissa/precision/empty_init.h"
#include "mantissa/precision/init.h"
#include "mantissa/precision/recompute.h"
#include "mantissa/precision/registry.h"

namespace mantissa {
namespace {

VitOptions options_of(char** sizes) {
  VitOptions options;
  options.num_layers = std::stoll(sizes[0]);
  options.hidden_dim = std::stoll(sizes[1]);
  options.num_heads = std::stoll(sizes[2]);
  options.mlp_dim = std::stoll(sizes[3]);
  options.image_size = std::stoll(sizes[4]);
  return options;
}

int run(char** arguments) {
  const std::string in = arguments[0], out = arguments[1], mode = arguments[2];
  const int64_t steps = std::stoll(arguments[3]);
  const auto precision = make_precision(mode, at::kCPU);
  Vit model =
      init_module(*precision, at::kCPU, [&] { return Vit(options_of(arguments + 4)); }, {.empty_init = true});
  load_weight_file(*model, in);
  precision->convert_module(*model);
  set_activation_checkpointing(*model, true);
  FusedAdamW optimizer(model->parameters(), AdamWOptions(1e-4).weight_decay(0.01));
  precision->setup_optimizer(optimizer);
  const Safetensors batch = load_safetensors(out + ".batch");
  const Scope running = precision->run_context();

  std::vector<double> losses, times;
  for (int64_t step = 0; step < steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Scope forward = precision->forward_context();
      const at::Tensor logits = model(precision->convert_input(batch.tensors.at("images")));
      loss = at::cross_entropy_loss(logits.to(at::kFloat), batch.tensors.at("labels"));
    }
    precision->backward(loss);
    precision->optimizer_step(optimizer);
    losses.push_back(loss.item<double>());
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  save_safetensors(out, {{"loss", at::tensor(losses)},
                         {"step_ms", at::tensor(times)},
                         {"peak_mib", at::tensor({peak_resident_bytes() >> 20})}});
  return 0;
}

}  // namespace
}  // namespace mantissa

int main(int count, char** arguments) {
  TORCH_CHECK(count == 10, "vit_training: give IN OUT MODE STEPS LAYERS WIDTH HEADS MLP IMAGE");
  return mantissa::run(arguments + 1);
}
