#include "mantissa/io/sharded.h"

#include <algorithm>
#include <fstream>
#include <ostream>
#include <set>
#include <system_error>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <nlohmann/json.hpp>

#include "mantissa/core/suggest.h"
#include "mantissa/io/atomic_file.h"
#include "mantissa/io/json_internal.h"
#include "mantissa/io/make_folders.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kSuffix = ".safetensors", kIndexSuffix = ".index.json";
constexpr const char* kTotalSize = "total_size";
/// A hundred times the index of a model of 700 billion parameters.
constexpr uint64_t kMaxIndexBytes = 1'000'000'000;

template <typename... Args>
void require(bool condition, const std::string& file, const Args&... what) {
  TORCH_CHECK_VALUE(condition, "safetensors index '", file, "': ", what...,
                    "; get the file again from its source");
}

std::string read_index(const fs::path& path) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  TORCH_CHECK(!error, "cannot read safetensors index '", path.string(), "': ", error.message(),
              "; check the path and its permissions");
  require(bytes <= kMaxIndexBytes, path.string(), "its ", bytes, " bytes are over the limit of ",
          kMaxIndexBytes, ", so it is probably not an index");
  std::string text(bytes, '\0');
  std::ifstream in(path, std::ios::binary);
  TORCH_CHECK(in.read(text.data(), std::streamsize(text.size())), "cannot read safetensors index '",
              path.string(), "'; check its permissions and the disk");
  return text;
}

bool is_index(const fs::path& path) { return path.filename().string().ends_with(kIndexSuffix); }

/// Returns the only model in a folder.
fs::path model_in(const fs::path& folder) {
  std::vector<fs::path> indexes, files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.')) continue;  // another writer's temporary file
    if (name.ends_with(std::string(kSuffix) + std::string(kIndexSuffix))) indexes.push_back(entry.path());
    if (name.ends_with(kSuffix)) files.push_back(entry.path());
  }
  const std::vector<fs::path>& found = indexes.empty() ? files : indexes;
  std::vector<std::string> names;
  for (const fs::path& path : found) names.push_back(path.filename().string());
  std::sort(names.begin(), names.end());
  TORCH_CHECK_VALUE(!names.empty(), "folder '", folder.string(),
                    "' holds no *.safetensors and no *.safetensors.index.json; give the path of one");
  TORCH_CHECK_VALUE(names.size() == 1, "folder '", folder.string(), "' holds ", names.size(), " models (",
                    join_names(names), "); give the path of one of them");
  return found.front();
}

uint64_t bytes_of(const SafetensorsEntry& entry) { return entry.end - entry.begin; }

/// Returns a name such as "model-00002-of-00012.safetensors".
std::string shard_name(const std::string& stem, size_t number, size_t count) {
  const auto padded = [](size_t n) {
    std::string digits = std::to_string(n);
    while (digits.size() < 5) digits.insert(0, 1, '0');
    return digits;
  };
  return stem + "-" + padded(number) + "-of-" + padded(count) + std::string(kSuffix);
}

void write_one(const SafetensorsLayout::File& file, const GiveElements& give) {
  SafetensorsHeader header = file.header;
  std::vector<std::string> order;
  const std::string text = make_safetensors_header(header, order);
  write_file_atomically(file.path, [&](std::ostream& stream) {
    write_safetensors_header(stream, text);
    for (const std::string& name : order) {
      const SafetensorsEntry& entry = header.tensors.at(name);
      uint64_t left = bytes_of(entry);
      give(name, [&](const at::Tensor& piece) {
        TORCH_CHECK_VALUE(piece.scalar_type() == entry.dtype && piece.nbytes() <= left,
                          "write_safetensors_files: ", piece.numel(), " elements of ", piece.scalar_type(),
                          " were given for tensor '", name, "', which has room for ", left, " bytes of ",
                          entry.dtype, "; give what the layout says");
        const at::Tensor plain = piece.contiguous();
        if (plain.nbytes() > 0)
          stream.write(static_cast<const char*>(plain.const_data_ptr()), std::streamsize(plain.nbytes()));
        left -= plain.nbytes();
      });
      TORCH_CHECK_VALUE(left == 0, "write_safetensors_files: the last ", left, " bytes of tensor '", name,
                        "' were not given; give what the layout says");
    }
  });
}

/// Makes a folder, and removes what was made since unless keep() is called.
class Undo {
 public:
  void make_folder(const fs::path& folder) {
    const std::error_code error = make_folders(folder, made_);
    TORCH_CHECK(!error, "folder '", folder.string(), "' cannot be made: ", error.message(),
                "; choose another place");
  }
  void made(const fs::path& file) { made_.push_back(file); }
  void keep() { made_.clear(); }

  Undo() = default;
  ~Undo() {
    std::error_code ignored;  // files that cannot be removed stay
    for (auto path = made_.rbegin(); path != made_.rend(); ++path) fs::remove(*path, ignored);
  }
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;

 private:
  std::vector<fs::path> made_;
};

}  // namespace

ShardIndex parse_shard_index(std::string_view text, const std::string& file) {
  const json root = parse_json(text, 8, [&](const std::string& what) { require(false, file, "it ", what); });
  require(root.contains("weight_map") && root["weight_map"].is_object(), file,
          "it has no weight_map, the file of each tensor");
  ShardIndex index;
  for (const auto& [name, shard] : root["weight_map"].items()) {
    require(shard.is_string(), file, "the shard of '", fit_for_message(name), "' must be a file name");
    const fs::path path(shard.get_ref<const std::string&>());
    // An index is untrusted input: it must not lead a reader out of its own folder. For the system a name
    // ends at its first zero byte, so it would open a different file from the one that is checked.
    require(path.has_filename() && path.filename() != "." && path.is_relative() &&
                path.native().find('\0') == std::string::npos &&
                std::find(path.begin(), path.end(), fs::path("..")) == path.end(),
            file, "the shard of '", fit_for_message(name), "', '", fit_for_message(path.string()),
            "', is not a file below the index's folder");
    index.weight_map.emplace(name, path.string());
  }
  require(!index.weight_map.empty(), file, "its weight_map is empty");
  if (root.contains("metadata") && root["metadata"].is_object()) {
    for (const auto& [key, value] : root["metadata"].items())
      if (value.is_string() && key != kTotalSize) index.metadata.emplace(key, value.get<std::string>());
  }
  return index;
}

std::string make_shard_index(const ShardIndex& index, uint64_t total_bytes) {
  nlohmann::ordered_json root;
  for (const auto& [key, value] : index.metadata) root["metadata"][key] = value;
  root["metadata"][kTotalSize] = total_bytes;
  root["weight_map"] = json(index.weight_map);
  try {
    return root.dump(2) + "\n";
  } catch (const json::exception&) {
    TORCH_CHECK_VALUE(false,
                      "make_shard_index: a name or a metadata text is not valid UTF-8, which JSON cannot "
                      "hold; rename it");
  }
  return {};
}

SafetensorsModel::SafetensorsModel(const fs::path& path) : name_(path.string()) {
  std::error_code error;
  const fs::path model = fs::is_directory(path, error) ? model_in(path) : path;
  sharded_ = is_index(model);
  if (!sharded_) {
    add_file(model);
    for (const auto& [name, entry] : shards_.front()->entries()) {
      entries_.emplace(name, entry);
      file_of_.emplace(name, shards_.front().get());
    }
    return;
  }
  const ShardIndex index = parse_shard_index(read_index(model), model.string());
  files_.push_back(model);
  std::map<std::string, std::vector<std::string>> names_of;
  for (const auto& [name, shard] : index.weight_map) names_of[shard].push_back(name);
  for (const auto& [shard, names] : names_of) {
    const fs::path file = model.parent_path() / shard;
    TORCH_CHECK(fs::exists(file, error), "safetensors index '", model.string(), "' names the shard '", shard,
                "', which is not there; get all shards of the model");
    add_file(file);
    const auto& entries = shards_.back()->entries();
    for (const std::string& name : names) {
      const auto found = entries.find(name);
      require(found != entries.end(), model.string(), "its shard '", shard, "' has no tensor '",
              fit_for_message(name), "'");
      entries_.emplace(name, found->second);
      file_of_.emplace(name, shards_.back().get());
    }
    for (const auto& [name, entry] : entries) {
      const auto listed = index.weight_map.find(name);
      require(listed != index.weight_map.end() && listed->second == shard, model.string(), "its shard '",
              shard, "' has a tensor '", fit_for_message(name), "', which the index does not give to it");
    }
  }
  add_metadata(index.metadata);
}

void SafetensorsModel::add_file(const fs::path& path) {
  shards_.push_back(std::make_unique<SafetensorsFile>(path));
  files_.push_back(path);
  add_metadata(shards_.back()->metadata());
}

void SafetensorsModel::add_metadata(const std::map<std::string, std::string>& metadata) {
  for (const auto& [key, value] : metadata) {
    const auto [first, is_new] = metadata_.emplace(key, value);
    if (!is_new && first->second != value) conflicts_.insert(key);
  }
}

const SafetensorsFile& SafetensorsModel::file_of(const std::string& name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) {
    TORCH_CHECK_VALUE(false, "model '", name_, "' has no tensor '", name, "'",
                      did_you_mean(name, keys_of(entries_)), "; entries() lists all ", entries_.size());
  }
  return *found->second;
}

at::Tensor SafetensorsModel::read(const std::string& name) const { return file_of(name).read(name); }

void SafetensorsModel::read_pieces(const std::string& name, const at::Tensor& buffer, int64_t max_elements,
                                   const TakeElements& take) const {
  const SafetensorsFile& file = file_of(name);
  const SafetensorsEntry& entry = entries_.at(name);
  const auto width = int64_t(c10::elementSize(entry.dtype));
  const int64_t size = c10::multiply_integers(entry.shape),
                step = std::min(max_elements, buffer.numel() / width);
  TORCH_CHECK_VALUE(step > 0 && buffer.scalar_type() == at::kByte && buffer.dim() == 1,
                    "read_pieces: a buffer of ", buffer.numel(), " ", buffer.scalar_type(), " and pieces of ",
                    max_elements, " elements hold no element of ", entry.dtype,
                    "; give a larger one of bytes");
  for (int64_t begin = 0; begin < size; begin += step) {
    const int64_t count = std::min(step, size - begin);
    const at::Tensor piece = buffer.narrow(0, 0, count * width).view(entry.dtype);
    file.read_into(name, begin, piece);
    take(piece);
  }
}

SafetensorsLayout lay_out_safetensors(const fs::path& out, const SafetensorsHeader& tensors,
                                      uint64_t max_shard_bytes) {
  SafetensorsHeader sized = tensors;  // with the offsets, and so the bytes of every tensor
  std::vector<std::string> unused;
  make_safetensors_header(sized, unused);

  std::vector<SafetensorsHeader> shards(1);
  uint64_t held = 0;
  for (const auto& [name, entry] : sized.tensors) {
    const uint64_t bytes = bytes_of(entry);
    if (max_shard_bytes > 0 && !shards.back().tensors.empty() &&
        bytes > max_shard_bytes - std::min(held, max_shard_bytes)) {
      shards.emplace_back();
      held = 0;
    }
    shards.back().tensors.emplace(name, entry);
    held += bytes;
  }

  std::string stem = out.filename().string();
  fs::path folder = out.parent_path();
  if (stem.ends_with(kIndexSuffix)) stem.resize(stem.size() - kIndexSuffix.size());
  if (stem.ends_with(kSuffix)) {
    stem.resize(stem.size() - kSuffix.size());
  } else {
    folder = out;
    stem = "model";
  }
  const std::string whole = stem + std::string(kSuffix);
  SafetensorsLayout layout;
  if (shards.size() > 1) layout.index = folder / (whole + std::string(kIndexSuffix));
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].metadata = tensors.metadata;
    make_safetensors_header(shards[i], unused);
    layout.files.push_back(
        {folder / (shards.size() == 1 ? whole : shard_name(stem, i + 1, shards.size())), shards[i]});
  }
  return layout;
}

void write_safetensors_files(const SafetensorsLayout& layout, const GiveElements& give) {
  std::error_code error;
  const bool several = !layout.index.empty();
  if (several) {
    std::vector<fs::path> paths{layout.index};
    for (const auto& file : layout.files) paths.push_back(file.path);
    for (const fs::path& path : paths)
      TORCH_CHECK_VALUE(!fs::exists(fs::symlink_status(path, error)), "'", path.string(),
                        "' already exists, and a model of several files cannot be replaced in one move; "
                        "remove it, or choose another place");
  }
  Undo undo;
  undo.make_folder(layout.files.front().path.parent_path());
  ShardIndex index;
  uint64_t total_bytes = 0;
  for (const auto& file : layout.files) {
    // Registered before it is written: if syncing its folder fails, the file already has its name.
    if (!fs::exists(fs::symlink_status(file.path, error))) undo.made(file.path);
    write_one(file, give);
    for (const auto& [name, entry] : file.header.tensors) {
      index.weight_map[name] = file.path.filename().string();
      total_bytes += bytes_of(entry);
    }
  }
  if (several) {
    undo.made(layout.index);
    write_file_atomically(layout.index, make_shard_index(index, total_bytes));
  }
  undo.keep();
}

}  // namespace mantissa
