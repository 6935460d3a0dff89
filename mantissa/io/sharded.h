#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/io/safetensors.h"
#include "mantissa/io/safetensors_header.h"

namespace mantissa {

/// The index of a model that lies in several safetensors files, as Hugging Face writes it:
/// `model.safetensors.index.json`.
struct ShardIndex {
  /// The file of each tensor, relative to the index's folder.
  std::map<std::string, std::string> weight_map;
  /// The index's own texts; its total_size is not one of them: it follows from the files.
  std::map<std::string, std::string> metadata;
};

/// Reads and checks the text of an index. `file` only names it in errors.
/// Errors: c10::ValueError naming the file and what is wrong: no JSON, a name that stands there twice, no
///         weight_map, one that is empty, a shard that is no file below the index's folder.
ShardIndex parse_shard_index(std::string_view text, const std::string& file);

/// The text of an index. Units: `total_bytes` of all tensors together.
/// Errors: c10::ValueError for names or metadata that are not UTF-8.
std::string make_shard_index(const ShardIndex& index, uint64_t total_bytes);

/// Takes the next elements of a tensor, in row-major order: any shape, on the CPU.
using TakeElements = std::function<void(const at::Tensor&)>;

/// The tensors of a model, in one safetensors file or in shards.
///
/// Memory:  the headers; values are read when they are asked for.
/// Threads: read() may be called from several at once.
/// Errors:  the constructor checks all headers and the index against each other: c10::ValueError for a folder
///          that holds no model or several, a shard that lacks a tensor of the index or has one that the
///          index gives to no shard or another, the errors of parse_shard_index() and SafetensorsFile.
/// Example: sharded_test.cpp, Sharded.WritesShardsAndReadsThemBack
class SafetensorsModel {
 public:
  /// `path`: a safetensors file, an index (`*.index.json`), or a folder that holds one index, else one
  /// `*.safetensors`.
  explicit SafetensorsModel(const std::filesystem::path& path);

  /// Dtypes and shapes by name. Offsets are those in the tensor's own file.
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  /// Of all files and the index together; the first that has a key decides.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Keys whose values differ between the files.
  const std::set<std::string>& conflicting_metadata() const { return conflicts_; }
  /// The safetensors files, and the index if there is one.
  const std::vector<std::filesystem::path>& files() const { return files_; }
  bool is_sharded() const { return sharded_; }

  /// As SafetensorsFile::read().
  at::Tensor read(const std::string& name) const;
  /// Hands all elements over, in row-major order, in pieces of as many as fit into `buffer` and are at most
  /// `max_elements`. A piece is good until the next one comes.
  /// Shapes: `buffer` is 1-D, of bytes, on the CPU; the pieces are 1-D, in its memory. That memory is the
  ///         caller's, who can use it for all tensors: libtorch's own, taken and freed a thousand times,
  ///         piles up.
  void read_pieces(const std::string& name, const at::Tensor& buffer, int64_t max_elements,
                   const TakeElements& take) const;

 private:
  void add_file(const std::filesystem::path& path);
  void add_metadata(const std::map<std::string, std::string>& metadata);
  const SafetensorsFile& file_of(const std::string& name) const;

  std::string name_;
  std::vector<std::filesystem::path> files_;
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, const SafetensorsFile*> file_of_;
  std::map<std::string, std::string> metadata_;
  std::set<std::string> conflicts_;
  bool sharded_ = false;
};

/// The files that a model is going to be: what they are called and what they hold.
struct SafetensorsLayout {
  struct File {
    std::filesystem::path path;
    SafetensorsHeader header;
  };
  std::vector<File> files;
  /// Empty if there is one file.
  std::filesystem::path index;
};

/// Divides tensors over files: in the order of their names, into the next file when one would hold more than
/// `max_shard_bytes` of them. A tensor larger than that gets a file of its own. Every file has the metadata.
///
/// `out`: `NAME.safetensors` or `NAME.safetensors.index.json`, else a folder, in which NAME is `model`. One
/// file is NAME.safetensors; several are NAME-00001-of-00002.safetensors and so on, beside
/// NAME.safetensors.index.json.
/// Units:  bytes of tensors; 0: one file.
/// Errors: those of make_safetensors_header().
SafetensorsLayout lay_out_safetensors(const std::filesystem::path& out, const SafetensorsHeader& tensors,
                                      uint64_t max_shard_bytes);

/// Hands all elements of the named tensor over, in as many pieces as it likes.
using GiveElements = std::function<void(const std::string& name, const TakeElements& take)>;

/// Writes the files of a layout from tensors that need not be in memory at any time.
///
/// Every file is written atomically, the index last: who reads a model through its index sees all of it or
/// none. The folder is made if it is missing.
/// Memory:  the headers and what `give` hands over at a time.
/// Errors:  c10::ValueError for pieces that do not make what the layout says, and if one of several files is
///          there already: they cannot be replaced in one move; whatever `give` throws; the errors of
///          write_file_atomically(). In all these cases no file and folder is left that was not there before.
void write_safetensors_files(const SafetensorsLayout& layout, const GiveElements& give);

}  // namespace mantissa
