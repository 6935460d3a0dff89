#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "cli/key_map.h"
#include "cli/weight_conversion.h"

namespace mantissa::cli {

/// The options of `mantissa convert`, as given.
struct ConvertCommand {
  std::string in, out, dtype, to, max_shard_size, key_map, strip_prefix, add_prefix;
  std::optional<int64_t> blocksize;
  std::vector<std::string> keep_fp32, only, ignore, rename, metadata;
  bool dequantize = false, overwrite = false, dry_run = false, json = false, quiet = false;
};

/// The parsed options of the command, before any model is opened.
struct ParsedOptions {
  std::optional<at::ScalarType> dtype;
  std::optional<WeightFormat> format;
  uint64_t max_shard_bytes = 0;
  std::vector<RenameRule> rules;
  std::map<std::string, std::string> metadata;
};

/// Errors: c10::ValueError for a value that is none of its option's, and for options that contradict each other.
ParsedOptions parse_convert(const ConvertCommand& c);

/// Throws c10::ValueError for a file whose name belongs to another format, such as net.pt.
void check_safetensors_name(const std::string& out);

}  // namespace mantissa::cli
