#include "mantissa/io/manifest.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <set>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <nlohmann/json.hpp>

#include "mantissa/io/checkpoint_internal.h"
#include "mantissa/io/checksum.h"
#include "mantissa/io/json_internal.h"
#include "mantissa/io/safetensors_header.h"

namespace mantissa {
namespace {

using nlohmann::json;
using Json = nlohmann::ordered_json;

constexpr std::string_view kTensor = "$tensor";
constexpr std::string_view kDouble = "$double";
/// safetensors has no complex128; such a tensor is stored as F64 with one more dimension.
constexpr std::string_view kComplexDouble = "C128";
/// The 32 digits of the checksum are between these two, at the very end.
constexpr std::string_view kBeforeChecksum = ",\n \"xxh3_128\": \"";
constexpr std::string_view kAfterChecksum = "\"\n}\n";
constexpr size_t kChecksumDigits = 32;
/// The end of the year 9999.
constexpr int64_t kLatestUnixMs = 253'402'300'799'999;

std::string joined(const std::string& path, std::string_view name) {
  return path.empty() ? std::string(name) : path + "." + std::string(name);
}

/// The place of an error in a manifest.
struct ManifestPlace {
  const std::string& file;
  std::string path;

  ManifestPlace at(std::string_view name) const {
    return {file, joined(path, fit_for_message(std::string(name)))};
  }
  template <typename... Args>
  void require(bool condition, const Args&... what) const {
    TORCH_CHECK_VALUE(condition, "checkpoint manifest '", file, "'", path.empty() ? "" : ", ", path, ": ",
                      what..., "; it is damaged: take another checkpoint");
  }
  const json& field(const json& object, const char* name) const {
    require(object.contains(name), "the field '", name, "' is missing");
    return object[name];
  }
  const json& object(const json& value) const {
    require(value.is_object(), "must be an object");
    return value;
  }
  const std::string& text(const json& value) const {
    require(value.is_string(), "must be a string");
    return value.get_ref<const std::string&>();
  }
  int64_t whole(const json& value) const {
    require(value.is_number_integer(), "must be a whole number");
    // Only unsigned numbers above 2^63 - 1 do not fit.
    const bool fits =
        !value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t(std::numeric_limits<int64_t>::max());
    require(fits, "is above 2^63 - 1");
    return value.get<int64_t>();
  }
  int64_t count(const json& value, int64_t most = std::numeric_limits<int64_t>::max()) const {
    const int64_t number = whole(value);
    require(number >= 0, "is ", number, "; it must be 0 or more");
    require(number <= most, "is ", number, "; it must be at most ", most);
    return number;
  }
  void only(const json& object, std::initializer_list<std::string_view> known) const {
    for (const auto& [key, unused] : object.items()) {
      require(std::find(known.begin(), known.end(), key) != known.end(), "unknown field '",
              fit_for_message(key), "'");
    }
  }
};

at::Tensor parse_tensor(const json& node, const ManifestPlace& place) {
  const std::string& name = place.at("dtype").text(place.field(node, "dtype"));
  const auto dtype = name == kComplexDouble ? at::kComplexDouble : safetensors_dtype(name);
  place.require(dtype.has_value(), "the dtype '", fit_for_message(name), "' is unknown");
  const json& sizes = place.field(node, "shape");
  // libtorch's own iterators support at most 64 dimensions.
  place.require(sizes.is_array() && sizes.size() <= 64, "'shape' must be a list of at most 64 whole numbers");
  std::vector<int64_t> shape;
  auto bytes = int64_t(c10::elementSize(*dtype));
  for (const json& size : sizes) {
    shape.push_back(place.at("shape").count(size));
    // A dimension of 0 does not make the others harmless: libtorch multiplies them to compute strides.
    const bool overflows = __builtin_mul_overflow(bytes, std::max<int64_t>(shape.back(), 1), &bytes);
    place.require(!overflows, "its size in bytes overflows 63 bits");
  }
  return at::empty(shape, at::TensorOptions().dtype(*dtype).device(at::kMeta));
}

double parse_bits(const std::string& text, const ManifestPlace& place) {
  uint64_t bits = 0;
  const bool hex = text.size() == 18 && text.starts_with("0x");
  const char* end = text.data() + text.size();
  const bool read = hex && std::from_chars(text.data() + 2, end, bits, 16).ptr == end;
  place.require(read, "'", kDouble, "' must hold \"0x\" and 16 hexadecimal digits");
  return std::bit_cast<double>(bits);
}

class StateParser {
 public:
  explicit StateParser(std::vector<std::string>& names) : names_(names) {}

  StateDict dict(const json& node, const ManifestPlace& place) {
    StateDict out;
    for (const auto& [key, value] : node.items()) {
      const bool escaped = key.starts_with("$$");
      place.require(escaped || !key.starts_with("$"), "the name '", fit_for_message(key), "' is unknown");
      const std::string name = escaped ? key.substr(1) : key;
      out.emplace(name, this->value(value, place.at(name)));
    }
    return out;
  }

 private:
  StateValue value(const json& node, const ManifestPlace& place) {
    switch (node.type()) {
      case json::value_t::null:
        return {};
      case json::value_t::boolean:
        return node.get<bool>();
      case json::value_t::number_integer:
      case json::value_t::number_unsigned:
        return place.whole(node);
      case json::value_t::number_float:
        return node.get<double>();
      case json::value_t::string:
        return node.get<std::string>();
      case json::value_t::array: {
        StateList list;
        for (size_t i = 0; i < node.size(); ++i) list.push_back(value(node[i], place.at(std::to_string(i))));
        return list;
      }
      default:
        return object(node, place);
    }
  }

  StateValue object(const json& node, const ManifestPlace& place) {
    if (node.contains(kTensor)) {
      place.only(node, {kTensor, "dtype", "shape"});
      const std::string& name = place.text(node[std::string(kTensor)]);
      place.require(taken_.insert(name).second, "the tensor '", fit_for_message(name), "' is named twice");
      names_.push_back(name);
      return parse_tensor(node, place);
    }
    if (node.contains(kDouble)) {
      place.only(node, {kDouble});
      return parse_bits(place.text(node[std::string(kDouble)]), place);
    }
    return dict(node, place);
  }

  std::vector<std::string>& names_;
  std::set<std::string> taken_;
};

void check_checksum(std::string_view text, const ManifestPlace& whole) {
  const size_t tail = kBeforeChecksum.size() + kChecksumDigits + kAfterChecksum.size();
  const bool formed = text.size() > tail && text.ends_with(kAfterChecksum) &&
                      text.substr(text.size() - tail).starts_with(kBeforeChecksum);
  whole.require(formed, "its last ", tail, " bytes must hold its checksum");
  const std::string_view body = text.substr(0, text.size() - tail);
  const std::string_view stored = text.substr(body.size() + kBeforeChecksum.size(), kChecksumDigits);
  const std::string found = checksum_of(body);
  whole.require(stored == found, "its checksum is ", found, ", and it was written with ",
                fit_for_message(std::string(stored)));
}

/// Returns `text` if JSON can hold it; throws otherwise.
const std::string& checked(const std::string& text, const std::string& place) {
  try {
    [[maybe_unused]] const std::string unused = json(text).dump();
  } catch (const json::exception&) {
    TORCH_CHECK_VALUE(false, "save_checkpoint: ", place,
                      ": its text or name is not valid UTF-8, which JSON cannot hold; encode it first");
  }
  return text;
}

std::string dtype_name(const at::Tensor& tensor, const std::string& place) {
  if (tensor.scalar_type() == at::kComplexDouble) return std::string(kComplexDouble);
  const auto name = safetensors_dtype_name(tensor.scalar_type());
  TORCH_CHECK_VALUE(name.has_value(), "save_checkpoint: ", place, ": a tensor of dtype ",
                    tensor.scalar_type(), " cannot be stored in a file; convert it first");
  return std::string(*name);
}

Json make_tensor(const std::string& name, const at::Tensor& tensor) {
  Json out;
  out[std::string(kTensor)] = name;
  out["dtype"] = dtype_name(tensor, name);
  out["shape"] = tensor.sizes().vec();
  return out;
}

Json make_double(double value) {
  if (std::isfinite(value)) return value;
  std::array<char, 19> text{};
  std::snprintf(text.data(), text.size(), "0x%016llx",
                static_cast<unsigned long long>(std::bit_cast<uint64_t>(value)));
  Json out;
  out[std::string(kDouble)] = text.data();
  return out;
}

class StateWriter {
 public:
  explicit StateWriter(const std::vector<std::string>& names) : names_(names) {}

  Json dict(const StateDict& dict, const std::string& path) {
    Json out = Json::object();
    // ordered_json looks up a key by walking through all of them; these names are known to be unique.
    auto& entries = out.get_ref<Json::object_t&>();
    for (const auto& [key, value] : dict) {
      const std::string place = joined(path, key);
      const std::string name = key.starts_with("$") ? "$" + key : key;
      entries.push_back({checked(name, place), this->value(value, place)});
    }
    return out;
  }

 private:
  Json value(const StateValue& value, const std::string& path) {
    if (value.get_if<at::Tensor>()) return make_tensor(names_.at(next_++), *value.get_if<at::Tensor>());
    if (const auto* dict = value.get_if<StateDict>()) return this->dict(*dict, path);
    if (const auto* flag = value.get_if<bool>()) return *flag;
    if (const auto* whole = value.get_if<int64_t>()) return *whole;
    if (const auto* number = value.get_if<double>()) return make_double(*number);
    if (const auto* text = value.get_if<std::string>()) return checked(*text, path);
    const auto* list = value.get_if<StateList>();
    if (!list) return nullptr;
    Json out = Json::array();
    for (size_t i = 0; i < list->size(); ++i) {
      out.push_back(this->value((*list)[i], joined(path, std::to_string(i))));
    }
    return out;
  }

  const std::vector<std::string>& names_;
  size_t next_ = 0;
};

/// Calls visit(path, tensor) for each tensor, in the order of StateParser and StateWriter.
template <typename Visit>
void walk(const StateValue& value, const std::string& path, int depth, const Visit& visit);

template <typename Visit>
void walk(const StateDict& dict, const std::string& path, int depth, const Visit& visit) {
  TORCH_CHECK_VALUE(depth <= kMaxStateDepth, "save_checkpoint: ", path, ": the state nests deeper than ",
                    kMaxStateDepth, " levels; flatten it");
  for (const auto& [key, value] : dict) walk(value, joined(path, key), depth + 1, visit);
}

template <typename Visit>
void walk(const StateValue& value, const std::string& path, int depth, const Visit& visit) {
  if (const auto* tensor = value.get_if<at::Tensor>()) {
    visit(path, *tensor);
  } else if (const auto* dict = value.get_if<StateDict>()) {
    walk(*dict, path, depth, visit);
  } else if (const auto* list = value.get_if<StateList>()) {
    TORCH_CHECK_VALUE(depth <= kMaxStateDepth, "save_checkpoint: ", path, ": the state nests deeper than ",
                      kMaxStateDepth, " levels; flatten it");
    for (size_t i = 0; i < list->size(); ++i) {
      walk((*list)[i], joined(path, std::to_string(i)), depth + 1, visit);
    }
  }
}

StateValue replaced(const StateValue& value, const std::vector<at::Tensor>& tensors, size_t& next);

StateDict replaced(const StateDict& dict, const std::vector<at::Tensor>& tensors, size_t& next) {
  StateDict out;
  for (const auto& [key, value] : dict) out.emplace_hint(out.end(), key, replaced(value, tensors, next));
  return out;
}

StateValue replaced(const StateValue& value, const std::vector<at::Tensor>& tensors, size_t& next) {
  if (value.get_if<at::Tensor>()) return tensors.at(next++);
  if (const auto* dict = value.get_if<StateDict>()) return replaced(*dict, tensors, next);
  const auto* list = value.get_if<StateList>();
  if (!list) return value;
  StateList out;
  for (const StateValue& item : *list) out.push_back(replaced(item, tensors, next));
  return out;
}

}  // namespace

Manifest parse_manifest(std::string_view text, const std::string& file, bool verify_checksum) {
  const ManifestPlace whole{file, ""};
  // A tensor's shape is a list in an object below the deepest level of the state, which is itself in the
  // root.
  const json root = parse_json(text, kMaxStateDepth + 4,
                               [&](const std::string& what) { whole.require(false, "it ", what); });
  // Checked before the checksum, because a later version may use a different one.
  // What is no object contains no field.
  whole.require(root.contains("format") && root["format"] == kManifestFormat,
                "it is not a manifest of a checkpoint: its field 'format' must be \"", kManifestFormat, "\"");
  const int64_t version = whole.at("version").whole(whole.field(root, "version"));
  TORCH_CHECK_VALUE(version == kManifestVersion, "checkpoint manifest '", file, "': its format version is ",
                    version, ", and only version ", kManifestVersion,
                    " is known here; read it with the Mantissa that wrote it, or a newer one");
  if (verify_checksum) check_checksum(text, whole);
  whole.only(root, {"format", "version", "mantissa", "libtorch", "step", "written_unix_ms", "files",
                    "weights", "state", "xxh3_128"});

  Manifest manifest;
  manifest.mantissa_version = whole.at("mantissa").text(whole.field(root, "mantissa"));
  manifest.libtorch_version = whole.at("libtorch").text(whole.field(root, "libtorch"));
  manifest.step = whole.at("step").count(whole.field(root, "step"), kMaxCount);
  manifest.written_unix_ms =
      whole.at("written_unix_ms").count(whole.field(root, "written_unix_ms"), kLatestUnixMs);
  for (const auto& [name, value] : whole.at("files").object(whole.field(root, "files")).items()) {
    const ManifestPlace place = whole.at("files").at(name);
    place.object(value);
    place.only(value, {"bytes", "xxh3_128"});
    manifest.files[name] = {uint64_t(place.at("bytes").count(place.field(value, "bytes"))),
                            place.at("xxh3_128").text(place.field(value, "xxh3_128"))};
  }
  for (const auto& [name, value] : whole.at("weights").object(whole.field(root, "weights")).items()) {
    const ManifestPlace place = whole.at("weights").at(name);
    place.object(value);
    place.only(value, {"dtype", "shape"});
    manifest.weights.emplace(name, parse_tensor(value, place));
  }
  const ManifestPlace place = whole.at("state");
  StateParser parser(manifest.tensor_names);
  manifest.state = parser.dict(place.object(whole.field(root, "state")), place);
  return manifest;
}

std::string make_manifest(const Manifest& manifest) {
  Json root;
  root["format"] = kManifestFormat;
  root["version"] = kManifestVersion;
  root["mantissa"] = MANTISSA_VERSION;
  root["libtorch"] = TORCH_VERSION;
  root["step"] = manifest.step;
  root["written_unix_ms"] = manifest.written_unix_ms;
  root["files"] = Json::object();
  for (const auto& [name, file] : manifest.files) {
    root["files"][name] = {{"bytes", file.bytes}, {"xxh3_128", file.xxh3_128}};
  }
  root["weights"] = Json::object();
  auto& weights = root["weights"].get_ref<Json::object_t&>();
  for (const auto& [name, tensor] : manifest.weights) {
    const std::string place = "weight '" + name + "'";
    Json entry;
    entry["dtype"] = dtype_name(tensor, place);
    entry["shape"] = tensor.sizes().vec();
    weights.push_back({checked(name, place), std::move(entry)});
  }
  root["state"] = StateWriter(manifest.tensor_names).dict(manifest.state, "");
  std::string text = root.dump(1);
  text.resize(text.size() - 2);  // "\n}"
  const std::string sum = checksum_of(text);
  return text.append(kBeforeChecksum).append(sum).append(kAfterChecksum);
}

std::vector<std::pair<std::string, at::Tensor>> named_tensors(const StateDict& state) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::set<std::string> taken{"__metadata__"};  // safetensors reserves this name
  walk(state, "", 1, [&](const std::string& path, const at::Tensor& tensor) {
    std::string name = path;
    while (!taken.insert(name).second) name += "'";
    tensors.emplace_back(name, tensor);
  });
  return tensors;
}

StateDict with_tensors(const StateDict& state, const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  return replaced(state, tensors, next);
}

}  // namespace mantissa
