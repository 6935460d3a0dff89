#include <fstream>
#include <map>
#include <utility>

#include <c10/util/Exception.h>

#include "mantissa/io/atomic_file.h"
#include "mantissa/io/sharded.h"
#include "mantissa/io/weights.h"
#include "mantissa/models/model_folder_internal.h"
#include "mantissa/models/weight_form.h"
#include "mantissa/weights/named_parts.h"

namespace mantissa {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConfig = "config.json";
constexpr const char* kModel = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

}  // namespace

ConfigFile read_config_file(const fs::path& given) {
  const fs::path path = fs::is_directory(given) ? given / kConfig : given;
  constexpr std::streamsize kLargest = 1 << 20;  // a config has a few KiB
  std::ifstream in(path, std::ios::binary);
  TORCH_CHECK(in && !fs::is_directory(path), "cannot read '", path.string(),
              "'; give the folder of a model with its config.json");
  std::string text(kLargest + 1, '\0');
  in.read(text.data(), kLargest + 1);
  TORCH_CHECK(!in.bad() && in.gcount() <= kLargest, "'", path.string(),
              "' has more than 1 MiB, or cannot be read; give the config.json of a model");
  text.resize(static_cast<size_t>(in.gcount()));
  return {std::move(text), path.string()};
}

void save_model_folder(const std::string& who, const CausalModel& model, const fs::path& folder,
                       uint64_t max_shard_bytes) {
  const std::map<std::string, at::Tensor> own = named_weights(model);
  TORCH_CHECK_VALUE(plain_weights(own).size() == own.size(), who,
                    ": the model has packed weights, such as 4-bit ones, which config.json does not "
                    "describe; restore them first, for example by mantissa convert --dequantize");
  std::error_code error;
  for (const char* name : {kConfig, kModel, kIndex})
    TORCH_CHECK_VALUE(!fs::exists(fs::symlink_status(folder / name, error)), who, ": '", folder.string(),
                      "' already has a ", name, "; choose another folder, or remove the model there");
  const std::map<std::string, at::Tensor> weights = as_in_files(model, own);
  SafetensorsHeader header;
  header.metadata["format"] = "pt";  // transformers refuses a file without it
  for (const auto& [name, weight] : weights)
    header.tensors[name] = {.dtype = weight.scalar_type(), .shape = weight.sizes().vec()};
  const std::string config = model.config_json(weights.begin()->second.scalar_type());
  write_safetensors_files(lay_out_safetensors(folder, header, max_shard_bytes),
                          [&](const std::string& name, const TakeElements& take) {
                            take(weights.at(name).detach().to(at::kCPU).contiguous());
                          });
  write_file_atomically(folder / kConfig, config);
}

}  // namespace mantissa
