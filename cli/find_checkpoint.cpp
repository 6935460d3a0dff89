#include "cli/find_checkpoint.h"

#include <algorithm>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "mantissa/io/checkpoint_folder.h"

namespace mantissa::cli {
namespace {

namespace fs = std::filesystem;

bool is_checkpoint(const fs::path& path) { return fs::is_regular_file(path / "manifest.json"); }

bool is_model(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  return !name.starts_with('.') &&
         (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"));
}

}  // namespace

fs::path find_checkpoint(const fs::path& path) {
  if (is_checkpoint(path)) return path;
  if (!fs::is_directory(path)) return {};
  // A folder that holds only weights may be a damaged checkpoint, but also a run.
  for (const CheckpointEntry& entry : list_checkpoints(path))
    if (is_checkpoint(entry.path)) return entry.path;
  const fs::directory_iterator entries(path);
  TORCH_CHECK_VALUE(std::any_of(begin(entries), end(entries), is_model), "folder '", path.string(),
                    "' holds no *.safetensors, no *.safetensors.index.json and no checkpoint; give the path "
                    "of one");
  return {};
}

}  // namespace mantissa::cli
