// Activation checkpointing and chunked losses in models and modes: the same results in less memory.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <string>

#include <torch/torch.h>

#include "mantissa/lora/lora_model.h"
#include "mantissa/models/gpt.h"
#include "mantissa/models/gpt2.h"
#include "mantissa/models/llama.h"
#include "mantissa/models/vit.h"
#include "mantissa/precision/recompute.h"
#include "mantissa/precision/registry.h"
#include "mantissa/trainer/classification_task.h"
#include "mantissa/trainer/memory_plan.h"

namespace mantissa::activation_memory_test {
namespace {

constexpr int64_t kVocabulary = 1000;

std::shared_ptr<CausalModel> make_gpt() {
  return std::make_shared<GptImpl>(
      GptOptions{.layers = 4, .width = 64, .heads = 4, .context = 32, .vocabulary = kVocabulary});
}

/// With dropout, which draws random numbers in each pass.
std::shared_ptr<CausalModel> make_gpt2() {
  Gpt2Options options;
  options.vocab_size = kVocabulary, options.n_positions = 32, options.n_embd = 64, options.n_layer = 4,
  options.n_head = 4;
  return std::make_shared<Gpt2Impl>(options);
}

std::shared_ptr<CausalModel> make_llama() {
  return std::make_shared<LlamaImpl>(LlamaOptions{.vocab_size = kVocabulary,
                                                  .hidden_size = 64,
                                                  .intermediate_size = 96,
                                                  .num_hidden_layers = 4,
                                                  .num_attention_heads = 4,
                                                  .num_key_value_heads = 2,
                                                  .max_position_embeddings = 32});
}

using Make = std::shared_ptr<CausalModel> (*)();
constexpr Make kModels[] = {make_gpt, make_gpt2, make_llama};

Batch some_batch() {
  const at::Tensor tokens = torch::randint(kVocabulary, {4, 33}, torch::kLong);
  return {tokens.narrow(1, 0, 32), tokens.narrow(1, 1, 32), {}};
}

/// With dropout, too.
std::shared_ptr<TensorModule> make_vit() {
  VitOptions options;
  options.image_size = 32, options.patch_size = 8, options.hidden_dim = 64, options.mlp_dim = 96;
  options.num_layers = 4, options.num_heads = 4, options.num_classes = 10, options.dropout = 0.1;
  return std::make_shared<VitImpl>(options);
}

class InMode : public testing::TestWithParam<std::string> {};

/// Returns the weights after two steps. Frozen weights are trained through adapters.
template <typename Make>
std::vector<at::Tensor> trained(const Make& make, const std::string& mode_name, const Batch& batch,
                                bool checkpoints) {
  torch::manual_seed(5);
  const auto model = make();
  const auto mode = make_precision(mode_name, at::kCPU);
  mode->convert_module(*model);
  std::optional<LoraModel> adapter;
  if (find_mode(mode_name).traits.frozen_weights) adapter.emplace(*model, LoraConfig{.r = 4});
  set_activation_checkpointing(*model, checkpoints);
  std::vector<at::Tensor> trains;
  for (const at::Tensor& p : model->parameters())
    if (p.requires_grad()) trains.push_back(p);
  torch::optim::SGD optimizer(trains, 0.5);
  mode->setup_optimizer(optimizer);
  const Scope run = mode->run_context();
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const Scope scope = mode->forward_context();
      const at::Tensor logits = model->forward(mode->convert_input(batch.data));
      loss = at::cross_entropy_loss(logits.flatten(0, -2).to(at::kFloat), batch.target.flatten());
    }
    mode->backward(loss);
    mode->optimizer_step(optimizer);
  }
  return trains;
}

template <typename Make>
void expect_same_bits(const Make& make, const std::string& mode, const Batch& batch) {
  const auto want = trained(make, mode, batch, false), got = trained(make, mode, batch, true);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
}

TEST_P(InMode, CheckpointingChangesNoBit) {
  torch::manual_seed(1);
  const Batch batch = some_batch();
  for (const Make make : kModels) expect_same_bits(make, GetParam(), batch);
  expect_same_bits(make_vit, GetParam(),
                   {torch::randn({3, 3, 32, 32}), torch::randint(10, {3}, torch::kLong), {}});
}

INSTANTIATE_TEST_SUITE_P(Modes, InMode,
                         testing::Values("32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true",
                                         "fp8-mixed", "nf4-dq", "int8", "int8-training"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

ClassificationTask task_of(const std::shared_ptr<CausalModel>& model, int64_t chunk) {
  ClassificationTask task(
      model, [model](const at::Tensor& x) { return model->forward(x); },
      [](torch::nn::Module& module) {
        return OptimizerConfig{std::make_shared<torch::optim::SGD>(module.parameters(), 0.5)};
      });
  if (chunk > 0)
    task.set_chunked_loss([model](const at::Tensor& x) { return model->hidden_states(x); },
                          [model](const at::Tensor& x) { return model->output_layer(x); }, chunk);
  return task;
}

TEST(ActivationMemory, ThePlanKnowsBothSavings) {
  const Batch batch = some_batch();
  for (const Make make : kModels) {
    const auto plan = [&](bool checkpoints, int64_t chunk) {
      const auto model = make();
      set_activation_checkpointing(*model, checkpoints);
      ClassificationTask task = task_of(model, chunk);
      return plan_memory(task, batch, {.precision = "32-true", .device = "cpu"});
    };
    const MemoryPlan plain = plan(false, 0), layers = plan(true, 0), chunks = plan(false, 16),
                     both = plan(true, 16);
    const int64_t hidden = 4 * 32 * 64 * 4, logits = 4 * 32 * kVocabulary * 4, generator = 5200;  // bytes
    EXPECT_LT(layers.activations, plain.activations - 4 * 8 * hidden) << "each layer keeps its input only";
    EXPECT_LE(chunks.activations, plain.activations - logits + 8 * generator)
        << "no logits are kept, but the random numbers' state of each chunk";
    EXPECT_LE(both.activations, 4 * hidden + 6 * hidden + 12 * generator)
        << "the layers' inputs and what is around them";
    EXPECT_LT(both.peak, layers.peak);
    EXPECT_LT(layers.peak, plain.peak);
  }
}

TEST(ActivationMemory, AChunkedTaskTrainsAndValidatesAsOneWithAllLogits) {
  const Batch batch = some_batch();
  torch::manual_seed(8);
  const auto whole_model = make_gpt();
  torch::manual_seed(8);
  const auto chunked_model = make_gpt();
  ClassificationTask whole = task_of(whole_model, 0), chunked = task_of(chunked_model, 10);
  const at::Tensor want = whole.training_step(batch, 0), got = chunked.training_step(batch, 0);
  EXPECT_NEAR(got.item<double>(), want.item<double>(), 1e-5);
  want.backward();
  got.backward();
  for (size_t i = 0; i < whole_model->parameters().size(); ++i)
    EXPECT_TRUE(
        at::allclose(chunked_model->parameters()[i].grad(), whole_model->parameters()[i].grad(), 1e-4, 1e-6));
  EXPECT_TRUE(at::equal(chunked.predict_step(batch, 0).toTensor(), whole.predict_step(batch, 0).toTensor()));
}

}  // namespace
}  // namespace mantissa::activation_memory_test
