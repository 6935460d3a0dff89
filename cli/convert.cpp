#include "mantissa/io/convert.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/errors.h"
#include "cli/find_checkpoint.h"
#include "cli/key_map.h"
#include "cli/terminal_text.h"
#include "mantissa/core/parse_number.h"
#include "mantissa/core/suggest.h"
#include "mantissa/io/checkpoint.h"
#include "mantissa/io/sharded.h"
#include "mantissa/trainer/loop/interrupt.h"

namespace mantissa::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct ConvertCommand {
  std::string in, out, dtype, max_shard_size, key_map, strip_prefix, add_prefix;
  std::vector<std::string> keep_fp32, only, rename, metadata;
  bool overwrite = false, dry_run = false, json = false, quiet = false;
};

struct DtypeName {
  at::ScalarType dtype;
  std::array<const char*, 3> names;  ///< errors and help use the first name
};
constexpr std::array kDtypes{
    DtypeName{at::kDouble, {"fp64", "float64", "F64"}},
    DtypeName{at::kFloat, {"fp32", "float32", "F32"}},
    DtypeName{at::kHalf, {"fp16", "float16", "F16"}},
    DtypeName{at::kBFloat16, {"bf16", "bfloat16", "BF16"}},
    DtypeName{at::kFloat8_e4m3fn, {"fp8-e4m3", "float8_e4m3fn", "F8_E4M3"}},
    DtypeName{at::kFloat8_e5m2, {"fp8-e5m2", "float8_e5m2", "F8_E5M2"}},
};

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (const DtypeName& row : kDtypes) names.emplace_back(row.names[0]);
  return names;
}

/// True if --dtype may change tensors of this dtype. F8_E8M0 is left alone, because it holds scales.
bool is_castable(at::ScalarType dtype) {
  return std::any_of(kDtypes.begin(), kDtypes.end(),
                     [&](const DtypeName& row) { return row.dtype == dtype; });
}

std::string name_of(at::ScalarType dtype) { return std::string(*safetensors_dtype_name(dtype)); }

at::ScalarType parse_dtype(const std::string& text) {
  for (const DtypeName& row : kDtypes)
    if (std::find(row.names.begin(), row.names.end(), text) != row.names.end()) return row.dtype;
  TORCH_CHECK_VALUE(false, "--dtype '", text, "' is not a valid value", did_you_mean(text, dtype_names()),
                    "; choose from ", join_names(dtype_names()));
  return at::kFloat;
}

/// Parses a size in bytes, such as "2GB" (GB is 10^9, as at Hugging Face), "500MiB" (MiB is 2^20) or
/// "1000000".
uint64_t parse_size(const std::string& text) {
  const size_t end = std::min(text.find_last_of("0123456789.") + 1, text.size());
  const ParsedNumber<double> amount = parse_number<double>(text.substr(0, end));
  TORCH_CHECK_VALUE(!amount.is_out_of_range, "--max-shard-size ", amount.problem);
  std::string unit = text.substr(end);
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  double factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  double decimal = 1, binary = 1;
  for (const char prefix : std::string_view("KMGT")) {
    decimal *= 1000, binary *= 1024;
    if (unit == std::string{prefix, 'B'}) factor = decimal;
    if (unit == std::string{prefix, 'I', 'B'}) factor = binary;
  }
  const double bytes = amount.value.value_or(0) * factor;
  TORCH_CHECK_VALUE(!(bytes > 1e18), "--max-shard-size '", text,
                    "' is out of range; choose at most 1000000TB, or leave it out for one file");
  TORCH_CHECK_VALUE(amount.value && factor > 0 && bytes >= 1, "--max-shard-size '", text,
                    "' is not a size; write a number and KB, MB, GB, TB, KiB, MiB, GiB or TiB, such as 2GB");
  return static_cast<uint64_t>(bytes);
}

/// The parsed options of the command, before any model is opened.
struct ParsedOptions {
  std::optional<at::ScalarType> dtype;
  uint64_t max_shard_bytes = 0;
  std::vector<RenameRule> rules;
  std::map<std::string, std::string> metadata;
};

ParsedOptions parse(const ConvertCommand& c) {
  ParsedOptions parsed;
  TORCH_CHECK_VALUE(!c.out.empty(), "'' is not an output; name a file or a folder");
  if (!c.dtype.empty()) parsed.dtype = parse_dtype(c.dtype);
  TORCH_CHECK_VALUE(parsed.dtype || (c.only.empty() && c.keep_fp32.empty()),
                    "--only and --keep-fp32 choose what --dtype changes; give --dtype, too");
  if (!c.max_shard_size.empty()) parsed.max_shard_bytes = parse_size(c.max_shard_size);
  if (!c.strip_prefix.empty()) parsed.rules.push_back(strip_prefix_rule(c.strip_prefix));
  if (!c.key_map.empty())
    for (const RenameRule& rule : read_key_map(c.key_map)) parsed.rules.push_back(rule);
  for (const std::string& text : c.rename) parsed.rules.push_back(parse_rename(text));
  if (!c.add_prefix.empty()) parsed.rules.push_back(add_prefix_rule(c.add_prefix));
  for (const std::string& text : c.metadata) {
    const size_t equals = text.find('=');
    TORCH_CHECK_VALUE(equals != std::string::npos && equals > 0, "--metadata '", text,
                      "' is not a KEY=VALUE pair; write one, such as format=pt");
    parsed.metadata[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return parsed;
}

at::ScalarType new_dtype(const ConvertCommand& c, const ParsedOptions& parsed, const std::string& name,
                         at::ScalarType dtype) {
  if (!parsed.dtype || !is_castable(dtype)) return dtype;
  if (matches_any(c.keep_fp32, name)) return at::kFloat;
  return c.only.empty() || matches_any(c.only, name) ? *parsed.dtype : dtype;
}

Conversion plan(const ConvertCommand& c, const ParsedOptions& parsed, const SafetensorsModel& model) {
  const std::vector<std::string> names = keys_of(model.entries());
  check_globs("--only", c.only, names);
  check_globs("--keep-fp32", c.keep_fp32, names);
  Conversion conversion;
  for (const auto& [source, name] : rename_all(names, parsed.rules))
    conversion[name] = {source, new_dtype(c, parsed, source, model.entries().at(source).dtype)};
  return conversion;
}

std::vector<fs::path> outputs(const SafetensorsLayout& layout) {
  std::vector<fs::path> paths;
  for (const auto& file : layout.files) paths.push_back(file.path);
  if (!layout.index.empty()) paths.push_back(layout.index);
  return paths;
}

uint64_t bytes_of(const SafetensorsHeader& header) {
  uint64_t bytes = 0;
  for (const auto& [name, entry] : header.tensors) bytes = std::max(bytes, entry.end);
  return bytes;
}

/// Checks everything that can be checked before a file is written.
void check_outputs(const ConvertCommand& c, const SafetensorsModel& model, const SafetensorsLayout& layout) {
  std::error_code error;
  for (const fs::path& path : outputs(layout)) {
    for (const fs::path& source : model.files())
      if (fs::equivalent(path, source, error))
        throw UsageError("'" + path.string() + "' is the input itself; choose another place for the output");
    TORCH_CHECK(c.overwrite || !fs::exists(fs::symlink_status(path, error)), "'", path.string(),
                "' already exists; choose another place, or give --overwrite");
  }
  const fs::path target = layout.files.front().path;
  fs::path folder = target.parent_path();
  while (!folder.empty() && !fs::exists(folder, error)) folder = folder.parent_path();
  if (folder.empty()) folder = target.is_absolute() ? "/" : ".";
  uint64_t needed = 0;
  for (const auto& file : layout.files) needed += bytes_of(file.header);
  const fs::space_info space = fs::space(folder, error);
  TORCH_CHECK(error || space.available >= needed, "'", c.out, "' needs ", human_bytes(needed),
              ", but the disk of ", folder.string(), " has ", human_bytes(space.available),
              " left; free some, or choose another disk");
}

/// Shows the progress in one line of a terminal. Prints nothing if standard error is not a terminal.
class Progress {
 public:
  Progress(uint64_t total_bytes, bool quiet)
      : total_(total_bytes), shows_(!quiet && isatty(STDERR_FILENO) == 1) {}
  ~Progress() {
    if (last_ >= 0) print_to_stderr("\r\033[K");
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(uint64_t bytes) {
    const int percent = total_ == 0 ? 0 : static_cast<int>(bytes * 100.0 / static_cast<double>(total_));
    if (!shows_ || percent == last_) return;
    last_ = percent;
    print_to_stderr(fmt::format("\r{:3}% of {}", percent, human_bytes(total_)));
  }

 private:
  uint64_t total_;
  bool shows_;
  int last_ = -1;
};

std::map<std::string, CastLoss> write(const ConvertCommand& c, const SafetensorsModel& model,
                                      const Conversion& conversion, const SafetensorsLayout& layout) {
  uint64_t total = 0;
  for (const auto& [name, tensor] : conversion) {
    const SafetensorsEntry& entry = model.entries().at(tensor.source);
    total += entry.end - entry.begin;
  }
  Progress progress(total, c.quiet);
  const InterruptScope interrupt;
  return convert_safetensors(model, conversion, layout, [&](uint64_t bytes_read) {
    if (const int signal = InterruptScope::requested()) throw Interrupted{signal};
    progress.show(bytes_read);
  });
}

/// The combined loss of all casts from one dtype to another.
struct CastGroup {
  int64_t tensors = 0;
  CastLoss loss;
};
using CastGroups = std::map<std::pair<std::string, std::string>, CastGroup>;

CastGroups groups_of(const SafetensorsModel& model, const Conversion& conversion,
                     const std::map<std::string, CastLoss>& losses) {
  CastGroups groups;
  for (const auto& [name, tensor] : conversion) {
    const at::ScalarType from = model.entries().at(tensor.source).dtype;
    if (from == tensor.dtype) continue;
    CastGroup& group = groups[{name_of(from), name_of(tensor.dtype)}];
    group.tensors += 1;
    if (const auto loss = losses.find(name); loss != losses.end()) group.loss.add(loss->second);
  }
  return groups;
}

void print(const ConvertCommand& c, const SafetensorsModel& model, const Conversion& conversion,
           const SafetensorsLayout& layout, const std::map<std::string, CastLoss>& losses) {
  for (const auto& file : layout.files)
    fmt::print("{}: {} tensors, {}\n", printable(file.path.string()), file.header.tensors.size(),
               human_bytes(bytes_of(file.header)));
  if (!layout.index.empty()) fmt::print("{}: the index\n", printable(layout.index.string()));
  if (c.dry_run) {
    for (const auto& [name, tensor] : conversion)
      fmt::print("{} {} => {} {}\n", printable(tensor.source),
                 name_of(model.entries().at(tensor.source).dtype), printable(name), name_of(tensor.dtype));
  }
  const size_t left_out = model.entries().size() - conversion.size();
  if (left_out > 0) fmt::print("left out: {} tensors\n", left_out);
  for (const auto& [dtypes, group] : groups_of(model, conversion, losses)) {
    fmt::print("{} to {}: {} tensors", dtypes.first, dtypes.second, group.tensors);
    if (!c.dry_run)
      fmt::print(", {} values: {} overflow, {} become zero, largest relative error of the others {:.3g}",
                 group.loss.values, group.loss.overflowed, group.loss.flushed, group.loss.max_relative_error);
    fmt::print("\n");
  }
  for (const auto& [name, loss] : losses)
    if (loss.overflowed + loss.flushed > 0)
      fmt::print("  {}: {} overflow, {} become zero, of {}\n", printable(name), loss.overflowed, loss.flushed,
                 loss.values);
}

Json to_json(const SafetensorsModel& model, const Conversion& conversion, const SafetensorsLayout& layout,
             const std::map<std::string, CastLoss>& losses) {
  Json files = Json::array(), tensors = Json::array();
  for (const fs::path& path : outputs(layout)) files.push_back(path.string());
  for (const auto& [name, tensor] : conversion) {
    Json one{{"name", name},
             {"source", tensor.source},
             {"source_dtype", name_of(model.entries().at(tensor.source).dtype)},
             {"dtype", name_of(tensor.dtype)}};
    if (const auto loss = losses.find(name); loss != losses.end()) {
      one["values"] = loss->second.values;
      one["overflowed"] = loss->second.overflowed;
      one["flushed"] = loss->second.flushed;
      one["max_relative_error"] = loss->second.max_relative_error;
    }
    tensors.push_back(std::move(one));
  }
  return {{"files", std::move(files)}, {"tensors", std::move(tensors)}};
}

void convert(const ConvertCommand& c) {
  const ParsedOptions parsed = usage([&] { return parse(c); });
  const fs::path checkpoint = find_checkpoint(c.in);
  const SafetensorsModel model(checkpoint.empty() ? fs::path(c.in) : checkpoint / kCheckpointWeights);
  for (const std::string& key : model.conflicting_metadata()) {
    TORCH_WARN("the files of ", c.in, " differ in the metadata '", printable(key),
               "'; that of the first file is kept; --metadata ", printable(key), "=VALUE sets another");
  }
  std::map<std::string, std::string> metadata = parsed.metadata;
  metadata.insert(model.metadata().begin(), model.metadata().end());
  const Conversion conversion = plan(c, parsed, model);
  const SafetensorsLayout layout =
      lay_out_safetensors(c.out, converted_header(model, conversion, metadata), parsed.max_shard_bytes);
  check_outputs(c, model, layout);
  std::map<std::string, CastLoss> losses;
  if (!c.dry_run) losses = write(c, model, conversion, layout);

  int64_t overflowed = 0;
  for (const auto& [name, loss] : losses) overflowed += loss.overflowed;
  if (overflowed > 0) {
    TORCH_WARN(overflowed,
               " values are too large for their new dtype and are inf or nan now; bf16 has "
               "float32's range, and --keep-fp32 leaves tensors out");
  }
  if (c.json) {
    fmt::print(
        "{}\n",
        to_json(model, conversion, layout, losses).dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print(c, model, conversion, layout, losses);
  }
}

}  // namespace

void add_convert(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("convert", "Change a model's dtypes, names and division into files");
  const auto command = std::make_shared<ConvertCommand>();
  ConvertCommand& c = *command;
  const auto add_repeatable = [&](const char* flag, std::vector<std::string>& values, const char* word,
                                  const char* help) {
    sub->add_option(flag, values, help)->allow_extra_args(false)->option_text(word);
  };
  const auto add_single = [&](const char* flag, std::string& text, const std::string& word,
                              const char* help) {
    return sub->add_option(flag, text, help)->option_text(word);
  };
  add_single("in", c.in, "IN", "a safetensors file, an index of shards, or a folder with one")->required();
  add_single("out", c.out, "OUT", "NAME.safetensors, or a folder for model.safetensors")->required();
  add_single("--dtype", c.dtype, fmt::format("{}", fmt::join(dtype_names(), "|")),
             "cast floating-point tensors");
  add_repeatable("--only", c.only, "GLOB", "cast only tensors of this name, a shell pattern; repeatable");
  add_repeatable("--keep-fp32", c.keep_fp32, "GLOB",
                 "tensors of this name become or stay float32; repeatable");
  add_single("--max-shard-size", c.max_shard_size, "SIZE",
             "several files of at most this size each, such as 2GB, and an index [one file]");
  add_single("--strip-prefix", c.strip_prefix, "TEXT", "remove this prefix from the names that have it");
  add_single("--key-map", c.key_map, "FILE",
             "new names: a YAML map from regular expressions to replacements");
  add_repeatable("--rename", c.rename, "REGEX=>TEXT",
                 "one such rule, with $1 for its first group; repeatable");
  add_single("--add-prefix", c.add_prefix, "TEXT", "put this before every name");
  add_repeatable("--metadata", c.metadata, "KEY=VALUE",
                 "set this beside the input's own metadata; repeatable");
  sub->add_flag("--overwrite", c.overwrite, "replace an existing output file, but never shards");
  sub->add_flag("--dry-run", c.dry_run, "print what would be written, and write nothing");
  sub->add_flag("--json", c.json, "write JSON to standard output instead of text");
  sub->add_flag("--quiet", c.quiet, "no progress");
  sub->footer(
      "Exit status: 0 done, 1 a file cannot be read or written, 2 the command is wrong, 128 + N ended by "
      "signal N; in all but 0 nothing is left behind.");
  sub->callback([command] { convert(*command); });
}

}  // namespace mantissa::cli
