#include "mantissa/models/llama_files.h"

#include "mantissa/io/weights.h"
#include "mantissa/models/llama_config.h"
#include "mantissa/models/model_folder_internal.h"

namespace mantissa {
namespace fs = std::filesystem;

LlamaOptions load_llama_config(const fs::path& path) {
  const ConfigFile config = read_config_file(path);
  return parse_llama_config(config.text, config.name);
}

Llama load_llama(const fs::path& folder) {
  Llama model(load_llama_config(folder));
  load_weights(*model, folder);
  return model;
}

void save_llama(const LlamaImpl& model, const fs::path& folder, uint64_t max_shard_bytes) {
  save_model_folder("save_llama", model, folder, max_shard_bytes);
}

}  // namespace mantissa
