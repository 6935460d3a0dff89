// Computes logits and gradients of a model of Hugging Face's. tests/parity/test_llama.py compares them.
//
//   models_runner llama IN OUT FOLDER [SAVED MAX_SHARD_BYTES]
//
// IN has "tokens" [B, T] and "upstream" [B, T, vocabulary], the gradient of the logits. OUT has "logits" and the
// gradients under "grad.<name>". FOLDER has config.json and the weights; SAVED receives the same model.
#include <cstdio>
#include <map>
#include <string>

#include <c10/util/Exception.h>

#include "mantissa/io/safetensors.h"
#include "mantissa/models/llama_files.h"

namespace mantissa {
namespace {

void run(const std::string& in, const std::string& out, const std::string& folder) {
  const Safetensors given = load_safetensors(in);
  Llama model = load_llama(folder);
  const at::Tensor logits = model(given.tensors.at("tokens"));
  logits.backward(given.tensors.at("upstream"));
  std::map<std::string, at::Tensor> result{{"logits", logits.detach()}};
  for (const auto& item : model->named_parameters()) result["grad." + item.key()] = item.value().grad();
  save_safetensors(out, result);
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) try {
  if ((argc != 5 && argc != 7) || std::string(argv[1]) != "llama") {
    std::fprintf(stderr, "usage: models_runner llama IN OUT FOLDER [SAVED MAX_SHARD_BYTES]\n");
    return 1;
  }
  mantissa::run(argv[2], argv[3], argv[4]);
  if (argc == 7) mantissa::save_llama(*mantissa::load_llama(argv[4]), argv[5], std::stoull(argv[6]));
  return 0;
} catch (const c10::Error& error) {
  std::fprintf(stderr, "models_runner: %s\n", error.what_without_backtrace());
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "models_runner: %s\n", error.what());
  return 1;
}
