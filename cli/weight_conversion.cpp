#include "cli/weight_conversion.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include <ATen/ops/aminmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include "cli/option.h"
#include "mantissa/core/formats.h"
#include "mantissa/core/suggest.h"
#include "mantissa/precision/mode_suggestion.h"
#include "mantissa/precision/registry.h"
#include "mantissa/quant/int8_state.h"
#include "mantissa/quant/quant_state.h"
#include "mantissa/quant/quantized_int8.h"
#include "mantissa/quant/stored_fp8.h"

namespace mantissa::cli {
namespace {

using Entries = std::map<std::string, SafetensorsEntry>;
using Tensors = std::map<std::string, at::Tensor>;

constexpr std::string_view kJson = ".quant_state.bitsandbytes__";
/// The longest text of a float32 number that Python or to_json() writes, such as -1.1754943508222875e-38.
constexpr int64_t kLongestNumber = 24;

bool is_plain_float(at::ScalarType dtype) {
  return dtype == at::kDouble || dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
}

uint64_t bytes_of(const SafetensorsEntry& entry) { return entry.end - entry.begin; }

/// Fills the JSON up to `size` with spaces. Its length depends on a number that is known only when the weight
/// has been quantized, and a safetensors file states all lengths at its beginning.
at::Tensor padded(const at::Tensor& json, int64_t size) {
  return at::cat({json, at::full({size - json.numel()}, ' ', at::kByte)});
}

bool is_json(const std::string& name) { return name.find(kJson) != std::string::npos; }

/// Returns the tensors that a weight of this shape becomes, without values.
Tensors parts_without_values(const std::vector<int64_t>& shape, at::ScalarType dtype, const std::string& name,
                             const WeightFormat& format) {
  const at::TensorOptions meta = at::TensorOptions(at::kMeta).dtype(at::kFloat);
  if (!format.four_bit)
    return pack_state(QuantizedInt8{at::empty(shape, meta.dtype(at::kChar)), at::empty({shape[0]}, meta), {}},
                      name);
  return pack_state(zeros_4bit(shape, dtype, *format.four_bit, at::kMeta), name);
}

Entries entries_of(const Tensors& parts, bool has_offset) {
  Entries entries;
  for (const auto& [name, tensor] : parts) {
    SafetensorsEntry& entry = entries[name];
    entry = {tensor.scalar_type(), tensor.sizes().vec(), 0, 0};
    if (has_offset && is_json(name)) entry.shape[0] += kLongestNumber;
  }
  return entries;
}

const SafetensorsEntry* find(const Entries& entries, const std::string& name) {
  const auto found = entries.find(name);
  return found == entries.end() ? nullptr : &found->second;
}

/// Restores some rows at a time, because dequantize_int8() computes in float32 and needs more than its result.
at::Tensor restored_rows(const QuantizedInt8& weight, at::ScalarType dtype) {
  const int64_t rows = weight.codes.size(0), width = weight.codes.size(1);
  const int64_t step = std::max<int64_t>(1, (1 << 20) / std::max<int64_t>(1, width));
  at::Tensor values = at::empty({rows, width}, dtype);
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    values.narrow(0, row, count)
        .copy_(dequantize_int8({weight.codes.narrow(0, row, count), weight.scales.narrow(0, row, count), {}},
                               dtype));
  }
  return values;
}

Tensors read(const SafetensorsModel& model, const StoredWeight& weight) {
  Tensors tensors;
  for (const std::string& name : weight.tensors)
    if (model.entries().contains(name)) tensors.emplace(name, model.read(name));
  return tensors;
}

}  // namespace

std::vector<std::string> weight_format_names() {
  std::vector<std::string> names;
  for (const Mode& mode : modes())
    if (mode.traits.frozen_weights) names.push_back(mode.name);
  return names;
}

WeightFormat parse_weight_format(const std::string& name, std::optional<int64_t> blocksize) {
  const std::vector<std::string> names = weight_format_names();
  TORCH_CHECK_VALUE(std::find(names.begin(), names.end(), name) != names.end(), "--to '", name,
                    "' is not a valid value", suggest_modes(name, names), "; choose from ",
                    join_names(names));
  const PrecisionTraits& traits = find_mode(name).traits;
  if (traits.weights == Format::kInt8) {
    TORCH_CHECK_VALUE(!blocksize, "--blocksize ", blocksize.value_or(0),
                      " with --to int8, which has a scale for each row; leave it out");
    return {name, std::nullopt};
  }
  Quantize4BitOptions options{.format = *traits.weights,
                              .blocksize = blocksize.value_or(64),
                              .compress_statistics = traits.double_quantized};
  naming_flags([&] { check_options(options); });
  return {name, options};
}

bool is_linear_weight(const std::string& name, const SafetensorsEntry& entry) {
  if (entry.shape.size() != 2 || !is_plain_float(entry.dtype)) return false;
  constexpr std::string_view kEnd = ".weight";
  if (name == kEnd.substr(1)) return true;
  if (!name.ends_with(kEnd)) return false;
  const std::string_view layer = std::string_view(name).substr(0, name.size() - kEnd.size());
  const std::string_view own = layer.substr(layer.rfind('.') + 1);
  // A norm may contain a Linear layer, and experts that are shared consist of them.
  if (own == "shared" || own.find("norm") != std::string_view::npos) return false;
  constexpr std::array<std::string_view, 6> kKept = {
      "embed", "wte", "wpe", "lm_head", "relative_attention_bias", "lora_"};
  return std::none_of(kKept.begin(), kKept.end(),
                      [&](std::string_view part) { return layer.find(part) != std::string_view::npos; });
}

MadeWeight quantized_weight(const SafetensorsModel& model, const std::string& source, const std::string& name,
                            const WeightFormat& format, std::optional<at::ScalarType> dtype) {
  const SafetensorsEntry& entry = model.entries().at(source);
  TORCH_CHECK_VALUE(entry.shape.size() == 2 && is_plain_float(entry.dtype), "--to ", format.name, ": '",
                    source, "' is ", entry.dtype, " of shape ", at::IntArrayRef(entry.shape),
                    ", and only matrices of fp64, fp32, fp16 and bf16 are quantized; leave it out of --only");
  const at::ScalarType from = dtype.value_or(entry.dtype == at::kDouble ? at::kFloat : entry.dtype);
  const Tensors parts = parts_without_values(entry.shape, from, name, format);
  const bool has_offset = format.four_bit && format.four_bit->compress_statistics;
  MadeWeight made{source, entries_of(parts, has_offset), {}, bytes_of(entry)};
  made.make = [&model, source, name, format, from, sizes = made.entries] {
    at::Tensor values = model.read(source);
    values = values.to(from);  // frees what was read
    const std::string quoted = "'" + source + "'";
    Tensors tensors = format.four_bit ? pack_state(quantize_4bit(values, *format.four_bit, quoted), name)
                                      : pack_state(quantize_int8(values, quoted), name);
    for (auto& [part, tensor] : tensors)
      if (is_json(part)) tensor = padded(tensor, sizes.at(part).shape[0]);
    return tensors;
  };
  return made;
}

/// Otherwise values that a narrow dtype cannot hold would become inf or nan without a word.
void check_range(const at::Tensor& values, at::ScalarType to, const std::string& name) {
  if (values.numel() == 0) return;
  const auto [low, high] = at::aminmax(values);
  const double largest = std::max(-low.to(at::kDouble).item<double>(), high.to(at::kDouble).item<double>());
  const auto format = format_of(to);
  const double limit = format ? info(*format).largest : std::numeric_limits<double>::max();
  TORCH_CHECK_VALUE(largest <= limit, "'", name, "' has values that ", to,
                    " cannot hold; restore it with --dtype fp32 or bf16");
}

MadeWeight restored_weight(const SafetensorsModel& model, const std::string& source,
                           const StoredWeight& weight, const std::string& name,
                           std::optional<at::ScalarType> dtype) {
  MadeWeight made{source, {}, {}, 0};
  for (const std::string& part : weight.tensors)
    if (const SafetensorsEntry* const entry = find(model.entries(), part)) made.bytes += bytes_of(*entry);
  std::vector<int64_t> shape;
  if (weight.is_int8 || weight.is_fp8) {
    shape = model.entries().at(source).shape;
  } else {
    TORCH_CHECK_VALUE(!weight.json.empty(), "'", source, "' has components of a 4-bit weight (such as '",
                      weight.tensors.back(), "'), but no '", source, kJson,
                      "nf4' or fp4; get the file again from its source");
    const QuantStateInfo info = read_quant_state(model.read(weight.json), weight.json);
    shape = info.shape;
    if (!dtype) dtype = info.dtype;
  }
  const at::ScalarType to = dtype.value_or(at::kHalf);
  made.entries[name] = {to, shape, 0, 0};
  made.make = [&model, source, weight, name, to, shape] {
    const Tensors tensors = read(model, weight);
    // libtorch's 8-bit floats are made by a cast.
    const at::ScalarType first = is_plain_float(to) ? to : at::kFloat;
    at::Tensor values = weight.is_fp8    ? dequantize_stored_fp8(tensors, source, first)
                        : weight.is_int8 ? restored_rows(unpack_state_int8(tensors, source), first)
                                         : dequantize_4bit(unpack_state_4bit(tensors, source), first);
    check_range(values, to, name);
    return Tensors{{name, values.to(to).view(shape)}};  // int8 codes may be those of a convolution
  };
  return made;
}

void MadeWeights::add(MadeWeight weight) {
  for (const auto& [name, entry] : weight.entries) {
    TORCH_CHECK_VALUE(owners_.emplace(name, weights_.size()).second,
                      "two tensors of the new model would be named '", name,
                      "'; rename one of them with --rename");
  }
  weights_.push_back(std::move(weight));
}

at::Tensor MadeWeights::tensor(const std::string& name, const std::function<void(uint64_t bytes)>& before) {
  const size_t owner = owners_.at(name);
  if (made_ != owner) {
    made_.reset();
    tensors_.clear();  // before the next weight is in memory
    before(weights_[owner].bytes);
    tensors_ = weights_[owner].make();
    made_ = owner;
  }
  return tensors_.at(name);
}

}  // namespace mantissa::cli
