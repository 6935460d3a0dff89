// QLoRA: fine-tunes a GPT whose weights are frozen in 4 bits. The base model learns one text in float32, the adapter
// another one.
#include <cstdio>
#include <memory>

#include <ATen/Context.h>

#include "mantissa/core/threads_apart.h"
#include "mantissa/data/loader.h"
#include "mantissa/data/text.h"
#include "mantissa/lora/lora_model.h"
#include "mantissa/models/gpt.h"
#include "mantissa/trainer/classification_task.h"
#include "mantissa/trainer/trainer.h"

int main(int argc, char** argv) {
  if (argc < 3) return std::fputs("usage: example_lora BASE.txt NEW.txt [ADAPTER_FOLDER]\n", stderr), 2;
  mantissa::keep_threads_apart();  // for a machine that is shared with other programs
  at::manual_seed(1);
  const auto batches_of = [](const at::Tensor& text) {
    return mantissa::DataLoader(std::make_shared<mantissa::TextDataset>(text, /*context=*/64),
                                {.batch_size = 16, .shuffle = true});
  };
  const auto [text, held_out] = mantissa::split_text(mantissa::load_text(argv[2]), 0.1);
  auto base = batches_of(mantissa::load_text(argv[1])), train = batches_of(text), val = batches_of(held_out);

  mantissa::Gpt model(mantissa::GptOptions{.layers = 2, .width = 64, .heads = 2, .context = 64});
  mantissa::ClassificationTask task(model, "adamw", {.lr = 3e-3});
  mantissa::Trainer({.precision = "32-true", .max_steps = 300}).fit(task, base);

  mantissa::LoraModel lora(*model, {.r = 8, .lora_alpha = 16});          // freezes the model
  mantissa::Trainer trainer({.precision = "nf4-dq", .max_steps = 200});  // its weights become 4-bit codes
  const double before = trainer.validate(task, val).at("val_loss");
  trainer.fit(task, train);
  const double after = trainer.validate(task, val).at("val_loss");
  const auto [trained, all] = lora.get_nb_trainable_parameters();
  std::printf("%ld of %ld parameters trained: validation loss %.3f, then %.3f\n", trained, all, before,
              after);
  if (argc > 3) lora.save_pretrained(argv[3]);  // PEFT reads this folder
  return after < before ? 0 : 1;
}
