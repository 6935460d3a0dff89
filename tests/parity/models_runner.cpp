// Runs a model of Hugging Face's. FOLDER has its config.json and weights. The tests of tests/parity that use it compare the
// results with those of transformers.
//
//   models_runner llama|gpt2 IN OUT FOLDER [SAVED MAX_SHARD_BYTES]
//
// computes logits and gradients. IN has "tokens" [B, T] and "upstream" [B, T, vocabulary], the gradient of the logits.
// OUT has "logits" and the gradients under "grad.<name>". SAVED receives the same model.
//
//   models_runner generate IN OUT FOLDER DTYPE COUNT TEMPERATURE TOP_K TOP_P SEED
//
// writes on. IN has "prompt" [B, T]. OUT has "tokens" [B, N] and "logits" [B, N, vocabulary], from which they were chosen.
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include "mantissa/core/default_dtype.h"
#include "mantissa/io/safetensors.h"
#include "mantissa/models/generate.h"
#include "mantissa/models/gpt2_files.h"
#include "mantissa/models/llama_files.h"
#include "mantissa/models/registry.h"
#include "mantissa/models/weight_form.h"

namespace mantissa {
namespace {

std::shared_ptr<CausalModel> load(const std::string& folder) {
  auto model = std::dynamic_pointer_cast<CausalModel>(
      make_model("hf:" + folder, {.kind = InputKind::kTokens, .vocabulary = 0, .context = 0}));
  load_weight_file(*model, folder);
  return model;
}

void save(const CausalModel& model, const std::string& folder, uint64_t max_shard_bytes) {
  if (const auto* const llama = dynamic_cast<const LlamaImpl*>(&model)) {
    save_llama(*llama, folder, max_shard_bytes);
  } else {
    save_gpt2(dynamic_cast<const Gpt2Impl&>(model), folder, max_shard_bytes);
  }
}

void run(const std::string& in, const std::string& out, const std::string& folder) {
  const Safetensors given = load_safetensors(in);
  const auto model = load(folder);
  model->eval();  // without dropout
  const at::Tensor logits = model->forward(given.tensors.at("tokens"));
  logits.backward(given.tensors.at("upstream"));
  std::map<std::string, at::Tensor> gradients, result{{"logits", logits.detach()}};
  for (const auto& item : model->named_parameters()) gradients[item.key()] = item.value().grad();
  for (const auto& [name, gradient] : as_in_files(*model, gradients)) result["grad." + name] = gradient;
  save_safetensors(out, result);
}

/// A model that keeps the logits from which tokens are chosen.
class Recorder final : public CausalModel {
 public:
  explicit Recorder(std::shared_ptr<CausalModel> model)
      : model_(register_module("model", std::move(model))) {}
  at::Tensor hidden_states(const at::Tensor& tokens) override { return model_->hidden_states(tokens); }
  at::Tensor output_layer(const at::Tensor& x) override { return model_->output_layer(x); }
  int64_t context() const override { return model_->context(); }
  int64_t vocabulary() const override { return model_->vocabulary(); }
  std::vector<int64_t> stop_tokens() const override { return model_->stop_tokens(); }
  at::Tensor next_logits(const at::Tensor& tokens, KeyValueCache& cache) override {
    logits.push_back(model_->next_logits(tokens, cache).to(at::kFloat));
    return logits.back();
  }
  std::vector<at::Tensor> logits;

 private:
  std::shared_ptr<CausalModel> model_;
};

void generate_text(char** arguments) {
  const std::vector<std::string> words(arguments, arguments + 9);
  const std::string &in = words[0], &out = words[1], &folder = words[2], &dtype = words[3];
  const DefaultDtypeGuard guard(dtype == "bf16" ? at::kBFloat16 : at::kFloat);
  Recorder model(load(folder));
  const Generated made = generate(model, load_safetensors(in).tensors.at("prompt"),
                                  {.max_new_tokens = std::stoll(words[4]),
                                   .sampling = {.temperature = std::stod(words[5]),
                                                .top_k = std::stoll(words[6]),
                                                .top_p = std::stod(words[7])},
                                   .seed = std::stoull(words[8])});
  save_safetensors(out, {{"tokens", made.tokens}, {"logits", at::stack(model.logits, 1)}});
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) try {
  if (argc == 11 && std::string(argv[1]) == "generate") {
    mantissa::generate_text(argv + 2);
    return 0;
  }
  if ((argc != 5 && argc != 7) || (std::string(argv[1]) != "llama" && std::string(argv[1]) != "gpt2")) {
    std::fprintf(stderr, "usage: models_runner llama|gpt2|generate IN OUT FOLDER ...\n");
    return 1;
  }
  mantissa::run(argv[2], argv[3], argv[4]);
  if (argc == 7) mantissa::save(*mantissa::load(argv[4]), argv[5], std::stoull(argv[6]));
  return 0;
} catch (const c10::Error& error) {
  std::fprintf(stderr, "models_runner: %s\n", error.what_without_backtrace());
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "models_runner: %s\n", error.what());
  return 1;
}
