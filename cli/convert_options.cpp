#include "cli/convert_options.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <c10/util/Exception.h>

#include "cli/dtype_names.h"
#include "mantissa/core/parse_number.h"

namespace mantissa::cli {
namespace {

/// Whether --to takes weights of this dtype.
bool is_quantizable(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
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

/// Throws if options contradict each other, or need one that is missing.
void check_together(const ConvertCommand& c, const ParsedOptions& parsed) {
  const bool changes = parsed.dtype || parsed.format || c.dequantize;
  TORCH_CHECK_VALUE(
      changes || (c.only.empty() && c.keep_fp32.empty()),
      "--only and --keep-fp32 choose what --dtype, --to or --dequantize changes; give --dtype, --to "
      "or --dequantize, too");
  TORCH_CHECK_VALUE(parsed.format || c.ignore.empty(),
                    "--ignore names what --to leaves in float; give --to, too");
  TORCH_CHECK_VALUE(parsed.format || !c.blocksize, "--blocksize is one of --to; give --to, too");
  TORCH_CHECK_VALUE(
      !parsed.format || !c.dequantize,
      "--to quantizes and --dequantize restores; give one of them (to change the format, restore "
      "into a second file first)");
  TORCH_CHECK_VALUE(!parsed.format || !parsed.dtype || is_quantizable(*parsed.dtype), "--to ", c.to,
                    " with --dtype ", c.dtype,
                    ": weights are quantized from fp32, fp16 or bf16; choose one of them");
}

/// Throws if --dtype names a format of codes, or --to a dtype: the two are easily taken for each other.
void check_not_swapped(const ConvertCommand& c) {
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  TORCH_CHECK_VALUE(!has(weight_format_names(), c.dtype), "--dtype ", c.dtype,
                    ": these are codes with scales, and no dtype; give --to ", c.dtype);
  TORCH_CHECK_VALUE(!has(dtype_names(), c.to), "--to ", c.to,
                    ": it quantizes, and this is a dtype; give --dtype ", c.to);
}

}  // namespace

void check_safetensors_name(const std::string& out) {
  constexpr std::array kOthers{".bin",  ".ckpt", ".gguf", ".h5",  ".npy",       ".npz",
                               ".onnx", ".pkl",  ".pt",   ".pth", ".safetensor"};
  const std::filesystem::path path(out);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return;
  const std::string ending = path.extension().string();
  TORCH_CHECK_VALUE(std::find(kOthers.begin(), kOthers.end(), ending) == kOthers.end(), "'", out,
                    "' ends in ", ending, ", and what is written are safetensors; name it ",
                    std::filesystem::path(path).replace_extension(".safetensors").string());
}

ParsedOptions parse_convert(const ConvertCommand& c) {
  ParsedOptions parsed;
  TORCH_CHECK_VALUE(!c.out.empty(), "'' is not an output; name a file or a folder");
  check_safetensors_name(c.out);
  check_not_swapped(c);
  if (!c.dtype.empty()) parsed.dtype = parse_dtype(c.dtype);
  if (!c.to.empty()) parsed.format = parse_weight_format(c.to, c.blocksize);
  check_together(c, parsed);
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

}  // namespace mantissa::cli
