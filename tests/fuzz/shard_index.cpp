#include <filesystem>

#include "mantissa/io/sharded.h"
#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {

void shard_index(std::string_view bytes) {
  const auto index = accepted([&] { return parse_shard_index(bytes, "f"); });
  if (!index) return;
  const std::filesystem::path folder("/model");
  for (const auto& [name, shard] : index->weight_map) {
    // The system's view, in which a name ends at its first zero byte.
    const auto file = (folder / shard.c_str()).lexically_normal();
    require(
        file.string().starts_with("/model/") && file.has_filename() && shard.find('\0') == std::string::npos,
        "the shard '" + shard + "' is no file below the folder");
  }
  const ShardIndex again = parse_shard_index(make_shard_index(*index, 1), "f");
  require(again.weight_map == index->weight_map, "another weight_map");
  require(again.metadata == index->metadata, "other metadata");
}

}  // namespace mantissa::fuzz
