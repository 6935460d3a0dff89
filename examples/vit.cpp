// Fine-tunes a Vision Transformer in a loop of your own: float16 with a loss scale, bfloat16 or float32, validation in
// the same precision, clipping, a layer that stays in float32, a watch for nan, and the time and memory of each epoch.
#include "mantissa/models/vit.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <torch/nn/functional/loss.h>

#include "mantissa/amp/autocast.h"
#include "mantissa/amp/clip_grad.h"
#include "mantissa/amp/grad_scaler.h"
#include "mantissa/amp/keep_in_fp32.h"
#include "mantissa/core/device.h"
#include "mantissa/core/threads_apart.h"
#include "mantissa/data/digits.h"
#include "mantissa/data/images/image_dataset.h"
#include "mantissa/data/images/image_folder.h"
#include "mantissa/data/loader.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/io/weights.h"
#include "mantissa/models/weight_form.h"
#include "mantissa/optim/sgd.h"
#include "mantissa/precision/recompute.h"
#include "mantissa/trace/trace_nonfinite.h"

namespace {

struct Setup {
  std::shared_ptr<const mantissa::Dataset> train, val;
  mantissa::VitOptions model;
  double lr;
};

/// The embedded digits and a small model, so that the example runs without files.
Setup digits() {
  const auto [train, val] = mantissa::random_split(mantissa::load_digits(), 0.2, /*seed=*/1);
  return {train,
          val,
          {.image_size = 8,
           .patch_size = 2,
           .num_layers = 4,
           .num_heads = 4,
           .hidden_dim = 64,
           .mlp_dim = 128,
           .num_classes = 10,
           .channels = 1},
          0.1};
}

/// A folder of images with the parts train and val, and ViT-L/16.
Setup photos(const std::filesystem::path& folder) {
  const auto train = std::make_shared<mantissa::ImageFolder>(folder / "train");
  const auto val = std::make_shared<mantissa::ImageFolder>(folder / "val");
  TORCH_CHECK_VALUE(train->classes() == val->classes(), "train and val need the same folders of classes");
  mantissa::VitOptions model = mantissa::vit_l_16_options();
  model.num_classes = std::ssize(train->classes());
  return {std::make_shared<mantissa::ImageDataset>(train, std::make_shared<mantissa::ImageAugmentation>()),
          std::make_shared<mantissa::ImageDataset>(val, std::make_shared<mantissa::ImageEvaluation>()), model,
          0.01};
}

/// Copies a public file, whose names are torchvision's or timm's, except the head: the classes are others.
void load_all_but_the_head(mantissa::VitImpl& model, const std::string& file) {
  auto weights = mantissa::as_in_model(model, mantissa::load_safetensors(file).tensors, file);
  for (const auto& [name, own] : mantissa::named_weights(model))
    if (name.starts_with("head.")) weights[name] = own.detach().clone();
  mantissa::load_weights(model, weights, file);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string precision = argc > 1 ? argv[1] : "fp16";
  if (precision != "fp16" && precision != "bf16" && precision != "fp32")
    return std::fputs("usage: example_vit [fp16|bf16|fp32 [FOLDER [WEIGHTS.safetensors]]]\n", stderr), 2;
  mantissa::keep_threads_apart();  // for a machine that is shared with other programs
  at::manual_seed(1);
  const Setup setup = argc > 2 ? photos(argv[2]) : digits();
  mantissa::Vit model(setup.model);
  if (argc > 3) load_all_but_the_head(*model, argv[3]);
  mantissa::set_activation_checkpointing(*model, true);  // keeps one activation of each block
  mantissa::keep_in_fp32(*model, "head");                // its logits are the most fragile numbers here

  mantissa::SGD optimizer(model->parameters(), mantissa::SGDOptions(setup.lr).momentum(0.9));
  mantissa::GradScaler scaler(at::kCPU, {.enabled = precision == "fp16"});
  const mantissa::AutocastOptions region{.dtype = precision == "fp16" ? at::kHalf : at::kBFloat16,
                                         .enabled = precision != "fp32"};
  mantissa::DataLoader train(setup.train,
                             {.batch_size = 32, .shuffle = true, .drop_last = true, .num_workers = 1});
  mantissa::DataLoader val(setup.val, {.batch_size = 64});
  double accuracy = 0;
  for (int epoch = 0; epoch < 10; ++epoch) {
    const auto start = std::chrono::steady_clock::now();
    model->train();
    train.set_epoch(epoch);
    double loss_sum = 0;
    while (const auto batch = train.next()) {
      const auto scaled_loss = [&] {
        const mantissa::Autocast autocast(at::kCPU, region);
        return scaler.scale(torch::nn::functional::cross_entropy(model->forward(batch->data), batch->target));
      };
      const mantissa::ReplayPoint point(*model);  // what a second look at this batch needs
      optimizer.zero_grad();
      const at::Tensor loss = scaled_loss();
      loss.backward();
      scaler.unscale_(optimizer);  // so that the limit of 1 holds for the gradients themselves
      mantissa::clip_grad_norm_(model->parameters(), 1.0);
      const double value = loss.item<double>() / scaler.get_scale();
      if (!std::isfinite(value) ||
          !scaler.step(optimizer)) {  // nothing has changed; only the scale will fall
        const auto origin = mantissa::trace_nonfinite(*model, scaled_loss, point);
        std::printf("%s\n", origin ? origin->to_string().c_str() : "skipped: only the sum overflowed");
      }
      scaler.update();
      loss_sum += value;
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;

    model->eval();
    const at::NoGradGuard no_grad;
    const mantissa::Autocast autocast(at::kCPU, region);  // validation needs no scaler
    val.set_epoch(epoch);
    int64_t right = 0;
    while (const auto batch = val.next())
      right += model->forward(batch->data).argmax(1).eq(batch->target).sum().item<int64_t>();
    accuracy = static_cast<double>(right) / static_cast<double>(setup.val->size());
    std::printf("%s, epoch %d: loss %.4f, accuracy %.4f, scale %.0f, %.1f s, peak memory %.0f MiB\n",
                precision.c_str(), epoch, loss_sum / static_cast<double>(train.size()), accuracy,
                scaler.get_scale(), seconds.count(),
                static_cast<double>(mantissa::peak_memory_bytes(at::kCPU)) / (1 << 20));
  }
  return argc > 2 || accuracy > 0.8 ? 0 : 1;
}
