#include "mantissa/models/gpt2_files.h"

#include "mantissa/models/gpt2_config.h"
#include "mantissa/models/model_folder_internal.h"
#include "mantissa/models/weight_form.h"

namespace mantissa {
namespace fs = std::filesystem;

Gpt2Options load_gpt2_config(const fs::path& path) {
  const ConfigFile config = read_config_file(path);
  return parse_gpt2_config(config.text, config.name);
}

Gpt2 load_gpt2(const fs::path& folder) {
  Gpt2 model(load_gpt2_config(folder));
  load_weight_file(*model, folder);
  return model;
}

void save_gpt2(const Gpt2Impl& model, const fs::path& folder, uint64_t max_shard_bytes) {
  save_model_folder("save_gpt2", model, folder, max_shard_bytes);
}

}  // namespace mantissa
