#include "mantissa/models/llama_files.h"

#include <fstream>
#include <map>
#include <string>

#include <c10/util/Exception.h>

#include "mantissa/io/atomic_file.h"
#include "mantissa/io/sharded.h"
#include "mantissa/io/weights.h"
#include "mantissa/models/llama_config.h"
#include "mantissa/weights/named_parts.h"

namespace mantissa {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConfig = "config.json";
constexpr const char* kModel = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

std::string read_text(const fs::path& path) {
  constexpr std::streamsize kLargest = 1 << 20;  // a config has a few KiB
  std::ifstream in(path, std::ios::binary);
  TORCH_CHECK(in && !fs::is_directory(path), "cannot read '", path.string(),
              "'; give the folder of a model with its config.json");
  std::string text(kLargest + 1, '\0');
  in.read(text.data(), kLargest + 1);
  TORCH_CHECK(!in.bad() && in.gcount() <= kLargest, "'", path.string(),
              "' has more than 1 MiB, or cannot be read; give the config.json of a model");
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

}  // namespace

LlamaOptions load_llama_config(const fs::path& path) {
  const fs::path file = fs::is_directory(path) ? path / kConfig : path;
  return parse_llama_config(read_text(file), file.string());
}

Llama load_llama(const fs::path& folder) {
  Llama model(load_llama_config(folder));
  load_weights(*model, folder);
  return model;
}

void save_llama(const LlamaImpl& model, const fs::path& folder, uint64_t max_shard_bytes) {
  const std::map<std::string, at::Tensor> weights = named_weights(model);
  TORCH_CHECK_VALUE(
      plain_weights(weights).size() == weights.size(),
      "save_llama: the model has packed weights, such as 4-bit ones, which config.json does not "
      "describe; restore them first, for example by mantissa convert --dequantize");
  std::error_code error;
  for (const char* name : {kConfig, kModel, kIndex})
    TORCH_CHECK_VALUE(!fs::exists(fs::symlink_status(folder / name, error)), "save_llama: '", folder.string(),
                      "' already has a ", name, "; choose another folder, or remove the model there");
  SafetensorsHeader header;
  header.metadata["format"] = "pt";  // transformers refuses a file without it
  for (const auto& [name, weight] : weights)
    header.tensors[name] = {.dtype = weight.scalar_type(), .shape = weight.sizes().vec()};
  const std::string config =
      make_llama_config(model.options(), weights.at("model.embed_tokens.weight").scalar_type());
  write_safetensors_files(lay_out_safetensors(folder, header, max_shard_bytes),
                          [&](const std::string& name, const TakeElements& take) {
                            take(weights.at(name).detach().to(at::kCPU).contiguous());
                          });
  write_file_atomically(folder / kConfig, config);
}

}  // namespace mantissa
