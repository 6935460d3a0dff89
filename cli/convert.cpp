#include "mantissa/io/convert.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/convert_options.h"
#include "cli/dtype_names.h"
#include "cli/errors.h"
#include "cli/find_checkpoint.h"
#include "cli/key_map.h"
#include "cli/model_config.h"
#include "cli/model_weights.h"
#include "cli/outputs.h"
#include "cli/run_folder.h"
#include "cli/terminal_text.h"
#include "cli/weight_conversion.h"
#include "mantissa/core/suggest.h"
#include "mantissa/io/atomic_file.h"
#include "mantissa/io/checkpoint.h"
#include "mantissa/io/sharded.h"
#include "mantissa/trainer/loop/interrupt.h"

namespace mantissa::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string name_of(at::ScalarType dtype) { return std::string(*safetensors_dtype_name(dtype)); }

at::ScalarType new_dtype(const ConvertCommand& c, const ParsedOptions& parsed, const std::string& name,
                         at::ScalarType dtype) {
  if (!parsed.dtype || !is_castable(dtype)) return dtype;
  if (matches_any(c.keep_fp32, name)) return at::kFloat;
  return c.only.empty() || matches_any(c.only, name) ? *parsed.dtype : dtype;
}

/// What becomes of the tensors of a model.
struct Plan {
  Conversion casts;  ///< those that stay one tensor
  MadeWeights made;
  std::vector<std::string> left_in_float;  ///< matrices that --to did not quantize, by their old names
  size_t left_out = 0;                     ///< tensors that a rule of --key-map left out
};

/// Whether --to quantizes a tensor.
bool is_to_be_quantized(const ConvertCommand& c, const std::string& name, const SafetensorsEntry& entry) {
  if (matches_any(c.ignore, name) || matches_any(c.keep_fp32, name)) return false;
  return c.only.empty() ? is_linear_weight(name, entry) : matches_any(c.only, name);
}

Plan plan_quantization(const ConvertCommand& c, const ParsedOptions& parsed, const SafetensorsModel& model,
                       const std::map<std::string, std::string>& renamed) {
  Plan plan;
  for (const auto& [source, name] : renamed) {
    const SafetensorsEntry& entry = model.entries().at(source);
    if (is_to_be_quantized(c, source, entry)) {
      plan.made.add(quantized_weight(model, source, name, *parsed.format, parsed.dtype));
      continue;
    }
    const bool is_float = parsed.dtype && is_castable(entry.dtype);
    plan.casts[name] = {source, matches_any(c.keep_fp32, source) && is_castable(entry.dtype) ? at::kFloat
                                : is_float                                                   ? *parsed.dtype
                                                                                             : entry.dtype};
    if (entry.shape.size() == 2 && is_castable(entry.dtype)) plan.left_in_float.push_back(source);
  }
  TORCH_CHECK_VALUE(
      !plan.made.all().empty(), "--to ", c.to, ": none of the ", renamed.size(),
      " tensors is the weight of a Linear layer that is to be quantized; choose tensors with --only");
  return plan;
}

/// Plans casts, and with --dequantize the restoring of quantized weights. Their codes and scales are never
/// cast: a rounded scale would change every value of its block.
Plan plan_casts(const ConvertCommand& c, const ParsedOptions& parsed, const SafetensorsModel& model,
                const std::map<std::string, StoredWeight>& quantized,
                const std::map<std::string, std::string>& renamed) {
  Plan plan;
  std::map<std::string, std::string> weight_of;  // by each of its tensors
  for (const auto& [weight, stored] : quantized)
    for (const std::string& tensor : stored.tensors) weight_of.emplace(tensor, weight);
  for (const auto& [source, name] : renamed) {
    const at::ScalarType dtype = model.entries().at(source).dtype;
    const auto part = weight_of.find(source);
    if (part == weight_of.end()) {
      plan.casts[name] = {source, new_dtype(c, parsed, source, dtype)};
    } else if (!c.dequantize || !(c.only.empty() || matches_any(c.only, part->second))) {
      plan.casts[name] = {source, dtype};
    } else if (source == part->second) {
      const auto to = matches_any(c.keep_fp32, source) ? std::make_optional(at::kFloat) : parsed.dtype;
      plan.made.add(restored_weight(model, source, quantized.at(source), name, to));
    }
  }
  TORCH_CHECK_VALUE(!c.dequantize || !plan.made.all().empty(), "--dequantize: none of the ", renamed.size(),
                    " tensors is a quantized weight", c.only.empty() ? "" : " that --only names",
                    "; leave it out, and cast with --dtype");
  return plan;
}

Plan plan(const ConvertCommand& c, const ParsedOptions& parsed, const SafetensorsModel& model) {
  const std::vector<std::string> names = keys_of(model.entries());
  check_globs("--only", c.only, names);
  check_globs("--ignore", c.ignore, names);
  check_globs("--keep-fp32", c.keep_fp32, names);
  const std::map<std::string, StoredWeight> quantized = find_stored_weights(dtypes_of(model.entries()));
  for (const auto& [weight, stored] : quantized)
    TORCH_CHECK_VALUE(!c.dequantize || model.entries().contains(weight), "--dequantize: there is '",
                      stored.tensors.back(), "', but no '", weight, "'; get the file again from its source");
  TORCH_CHECK_VALUE(!parsed.format || quantized.empty(), "--to ", c.to, ": ", quantized.size(),
                    " weights are quantized already, the first of them '",
                    quantized.empty() ? "" : quantized.begin()->first,
                    "'; restore them into another file with --dequantize first");
  const std::map<std::string, std::string> renamed = rename_all(names, parsed.rules);
  Plan plan = parsed.format ? plan_quantization(c, parsed, model, renamed)
                            : plan_casts(c, parsed, model, quantized, renamed);
  plan.left_out = names.size() - renamed.size();
  return plan;
}

/// Makes the metadata's "precision", the mode that the input was trained in, that of the new weights. It stays if no
/// dtype changes.
void correct_precision(std::map<std::string, std::string>& metadata, const SafetensorsModel& model,
                       const Plan& plan) {
  if (!metadata.contains("precision")) return;
  const bool casts = std::any_of(plan.casts.begin(), plan.casts.end(), [&](const auto& cast) {
    return model.entries().at(cast.second.source).dtype != cast.second.dtype;
  });
  if (plan.made.all().empty() && !casts) return;
  std::map<std::string, SafetensorsEntry> tensors = converted_header(model, plan.casts, {}).tensors;
  for (const MadeWeight& weight : plan.made.all())
    tensors.insert(weight.entries.begin(), weight.entries.end());
  const std::string mode = mode_of_weights(tensors);
  if (mode.empty()) {
    metadata.erase("precision");
  } else {
    metadata["precision"] = mode;
  }
}

/// Returns the header of the new model.
SafetensorsHeader header_of(const SafetensorsModel& model, const Plan& plan,
                            const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header = converted_header(model, plan.casts, metadata);
  for (const MadeWeight& weight : plan.made.all())
    for (const auto& [name, entry] : weight.entries)
      TORCH_CHECK_VALUE(header.tensors.emplace(name, entry).second,
                        "two tensors of the new model would be named '", printable(name),
                        "'; rename one of them with --rename");
  return header;
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

/// Throws if the output would lie beside the same model in the other form, one file or shards with an index. A program
/// that reads the folder would take one of the two.
void check_other_form(const SafetensorsLayout& layout) {
  fs::path other = layout.index;  // NAME.safetensors.index.json
  if (other.empty()) {
    other = layout.files.front().path;
    other += ".index.json";
  } else {
    other.replace_extension().replace_extension();
  }
  std::error_code error;
  TORCH_CHECK(!fs::exists(fs::symlink_status(other, error)), "'", other.string(),
              "' already exists, and the output would be a second model beside it; choose another place");
}

/// Checks everything that can be checked before a file is written.
void check_can_be_written(const ConvertCommand& c, const SafetensorsModel& model,
                          const SafetensorsLayout& layout, bool copies_config) {
  std::error_code error;
  if (fs::is_directory(c.in, error) && fs::equivalent(c.in, c.out, error))
    throw UsageError("'" + c.out + "' is the input itself; choose another place for the output");
  std::vector<Output> written;
  for (const fs::path& path : outputs(layout)) written.push_back({path, c.overwrite, /*makes_folder=*/true});
  if (copies_config) written.push_back({fs::path(c.out) / kModelConfig, c.overwrite, /*makes_folder=*/true});
  check_outputs(written, {model.files().begin(), model.files().end()});
  check_other_form(layout);
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

std::map<std::string, CastLoss> write(const ConvertCommand& c, const SafetensorsModel& model, Plan& plan,
                                      const SafetensorsLayout& layout) {
  uint64_t total = 0, cast = 0, made = 0;  // bytes to be read, and bytes that were
  for (const auto& [name, tensor] : plan.casts) {
    const SafetensorsEntry& entry = model.entries().at(tensor.source);
    total += entry.end - entry.begin;
  }
  // A file lists tensors by dtype, so most weights are made twice: for the scales and for the codes.
  for (const MadeWeight& weight : plan.made.all()) total += 2 * weight.bytes;
  Progress progress(total, c.quiet);
  const InterruptScope interrupt;
  const auto show = [&] {
    if (const int signal = InterruptScope::requested()) throw Interrupted{signal};
    progress.show(std::min(total, cast + made));
  };
  return convert_safetensors(
      model, plan.casts, layout,
      [&](uint64_t bytes_read) {
        cast = bytes_read;
        show();
      },
      [&](const std::string& name, const TakeElements& take) {
        take(plan.made.tensor(name, [&](uint64_t bytes) {
          made += bytes;
          show();
        }));
      });
}

/// Returns the config.json beside the input, without which transformers cannot read a folder with its weights. Returns ""
/// if there is none, if the output is no such folder, or if the file would not describe quantized weights.
fs::path config_to_copy(const ConvertCommand& c, const SafetensorsModel& model) {
  const fs::path config = model.files().front().parent_path() / kModelConfig,
                 copy = fs::path(c.out) / kModelConfig;
  std::error_code error;
  const bool is_file = fs::path(c.out).filename().string().ends_with(".safetensors");
  if (is_file || !c.to.empty() || !fs::is_regular_file(config, error) || fs::equivalent(config, copy, error))
    return {};
  return config;
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

/// Returns the bytes of the tensors that the made weights become.
uint64_t bytes_made(const Plan& plan, const SafetensorsLayout& layout) {
  uint64_t bytes = 0;
  for (const auto& file : layout.files)
    for (const auto& [name, entry] : file.header.tensors)
      if (plan.made.contains(name)) bytes += entry.end - entry.begin;
  return bytes;
}

void print_made(const ConvertCommand& c, const Plan& plan, const SafetensorsLayout& layout) {
  if (plan.made.all().empty()) return;
  uint64_t before = 0;
  for (const MadeWeight& weight : plan.made.all()) before += weight.bytes;
  fmt::print("{}: {} weights, {} to {}\n", c.dequantize ? "restored" : "quantized to " + c.to,
             plan.made.all().size(), human_bytes(before), human_bytes(bytes_made(plan, layout)));
  if (c.dry_run)
    for (const MadeWeight& weight : plan.made.all())
      for (const auto& [name, entry] : weight.entries)
        fmt::print("{} => {} {}\n", printable(weight.source), printable(name), name_of(entry.dtype));
  if (plan.left_in_float.empty()) return;
  std::vector<std::string> names;
  for (const std::string& name : plan.left_in_float) names.push_back(printable(name));
  fmt::print("left in float: {}\n", fmt::join(names, ", "));
}

void print(const ConvertCommand& c, const SafetensorsModel& model, const Plan& plan,
           const SafetensorsLayout& layout, const std::map<std::string, CastLoss>& losses) {
  const Conversion& conversion = plan.casts;
  for (const auto& file : layout.files)
    fmt::print("{}: {} tensors, {}\n", printable(file.path.string()), file.header.tensors.size(),
               human_bytes(bytes_of(file.header)));
  if (!layout.index.empty()) fmt::print("{}: the index\n", printable(layout.index.string()));
  if (c.dry_run) {
    for (const auto& [name, tensor] : conversion)
      fmt::print("{} {} => {} {}\n", printable(tensor.source),
                 name_of(model.entries().at(tensor.source).dtype), printable(name), name_of(tensor.dtype));
  }
  print_made(c, plan, layout);
  if (plan.left_out > 0) fmt::print("left out: {} tensors\n", plan.left_out);
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

Json to_json(const SafetensorsModel& model, const Plan& plan, const SafetensorsLayout& layout,
             const std::map<std::string, CastLoss>& losses) {
  const Conversion& conversion = plan.casts;
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
  for (const MadeWeight& weight : plan.made.all())
    for (const auto& [name, entry] : weight.entries)
      tensors.push_back({{"name", name},
                         {"source", weight.source},
                         {"source_dtype", name_of(model.entries().at(weight.source).dtype)},
                         {"dtype", name_of(entry.dtype)}});
  Json left = plan.left_in_float;
  return {{"files", std::move(files)}, {"tensors", std::move(tensors)}, {"left_in_float", std::move(left)}};
}

void convert(const ConvertCommand& c) {
  const ParsedOptions parsed = usage([&] { return parse_convert(c); });
  const fs::path checkpoint = find_checkpoint(c.in);
  const SafetensorsModel model(checkpoint.empty() ? fs::path(c.in) : checkpoint / kCheckpointWeights);
  for (const std::string& key : model.conflicting_metadata()) {
    TORCH_WARN("the files of ", c.in, " differ in the metadata '", printable(key),
               "'; that of the first file is kept; --metadata ", printable(key), "=VALUE sets another");
  }
  Plan plan = cli::plan(c, parsed, model);
  std::map<std::string, std::string> metadata = model.metadata();
  correct_precision(metadata, model, plan);
  for (const auto& [key, value] : parsed.metadata) metadata[key] = value;
  const fs::path config = config_to_copy(c, model);
  if (!config.empty()) metadata.emplace("format", "pt");  // transformers refuses a file without it
  const SafetensorsLayout layout =
      lay_out_safetensors(c.out, header_of(model, plan, metadata), parsed.max_shard_bytes);
  check_can_be_written(c, model, layout, !config.empty());
  std::map<std::string, CastLoss> losses;
  if (!c.dry_run) {
    losses = write(c, model, plan, layout);
    if (!config.empty()) write_file_atomically(fs::path(c.out) / kModelConfig, config_for(layout, config));
  }

  int64_t overflowed = 0;
  for (const auto& [name, loss] : losses) overflowed += loss.overflowed;
  if (overflowed > 0) {
    TORCH_WARN(overflowed,
               " values are too large for their new dtype and are inf or nan now; bf16 has "
               "float32's range, and --keep-fp32 leaves tensors out");
  }
  if (c.json) {
    fmt::print("{}\n",
               to_json(model, plan, layout, losses).dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print(c, model, plan, layout, losses);
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
             "cast floating-point tensors; codes and scales of quantized weights stay as they are");
  add_single("--to", c.to, fmt::format("{}", fmt::join(weight_format_names(), "|")),
             "quantize the weights of Linear layers, for bitsandbytes and Mantissa");
  sub->add_option("--blocksize", c.blocksize, "values per scale of --to's 4-bit formats [64]")
      ->option_text("N");
  sub->add_flag("--dequantize", c.dequantize,
                "restore quantized weights in --dtype, or in the dtype that they were quantized from");
  add_repeatable("--only", c.only, "GLOB",
                 "cast, quantize or restore only tensors of this name, a shell pattern; repeatable");
  add_repeatable("--ignore", c.ignore, "GLOB", "--to leaves tensors of this name in float; repeatable");
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
