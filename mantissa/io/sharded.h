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

/// The index of a model in several safetensors files, as Hugging Face writes it:
/// `model.safetensors.index.json`.
struct ShardIndex {
  /// The file of each tensor, relative to the index's folder.
  std::map<std::string, std::string> weight_map;
  /// The index's own texts, without its total_size, which follows from the files.
  std::map<std::string, std::string> metadata;
};

/// Reads and checks the text of an index. `file` is its name in errors.
/// Errors: c10::ValueError naming the file and the problem: no JSON, a repeated name, a missing or empty
///         weight_map, or a shard that is not a file below the index's folder.
ShardIndex parse_shard_index(std::string_view text, const std::string& file);

/// Returns the text of an index. Units: `total_bytes` of all tensors together.
/// Errors: c10::ValueError for names or metadata that are not UTF-8.
std::string make_shard_index(const ShardIndex& index, uint64_t total_bytes);

/// Receives the next elements of a tensor, in row-major order: any shape, on the CPU.
using TakeElements = std::function<void(const at::Tensor&)>;

/// The tensors of a model, in one safetensors file or in shards.
///
/// Memory:  the headers; values are read when they are asked for.
/// Threads: several threads may call read() at once.
/// Errors:  the constructor checks all headers and the index against each other: c10::ValueError for a folder
///          with no model or several, for a shard that lacks a tensor of the index, and for one with a tensor
///          that the index assigns to another shard or to none; the errors of parse_shard_index() and
///          SafetensorsFile.
/// Example: sharded_test.cpp, Sharded.WritesShardsAndReadsThemBack
class SafetensorsModel {
 public:
  /// `path`: a safetensors file, an index (`*.index.json`), or a folder with one index or else one
  /// `*.safetensors`.
  explicit SafetensorsModel(const std::filesystem::path& path);

  /// Returns dtypes and shapes by name. Offsets refer to the tensor's own file.
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  /// Returns the metadata of all files and the index together; the first one with a key decides.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Returns the keys whose values differ between the files.
  const std::set<std::string>& conflicting_metadata() const { return conflicts_; }
  /// Returns the safetensors files, and the index if there is one.
  const std::vector<std::filesystem::path>& files() const { return files_; }
  bool is_sharded() const { return sharded_; }

  /// As SafetensorsFile::read().
  at::Tensor read(const std::string& name) const;
  /// Passes all elements to `take` in row-major order, in pieces that fit into `buffer` and have at most
  /// `max_elements`. A piece is valid until the next one comes.
  /// Shapes: `buffer` is 1-D, of bytes, on the CPU; the pieces are 1-D, in its memory. The caller owns that
  ///         memory and can use it for all tensors: memory that libtorch allocates and frees a thousand times
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

/// The files of a model to be written, with their names and contents.
struct SafetensorsLayout {
  struct File {
    std::filesystem::path path;
    SafetensorsHeader header;
  };
  std::vector<File> files;
  /// Empty if there is one file.
  std::filesystem::path index;
};

/// Divides tensors among files in the order of their names; a new file begins when one would hold more than
/// `max_shard_bytes`. A tensor larger than that gets its own file. Every file has the metadata.
///
/// `out`: `NAME.safetensors` or `NAME.safetensors.index.json`; any other path is a folder, and NAME is
/// `model`. One file is NAME.safetensors; several are NAME-00001-of-00002.safetensors and so on, with
/// NAME.safetensors.index.json.
/// Units:  bytes of tensors; 0: one file.
/// Errors: those of make_safetensors_header().
SafetensorsLayout lay_out_safetensors(const std::filesystem::path& out, const SafetensorsHeader& tensors,
                                      uint64_t max_shard_bytes);

/// Passes all elements of the named tensor to `take`, in any number of pieces.
using GiveElements = std::function<void(const std::string& name, const TakeElements& take)>;

/// Writes the files of a layout from tensors that are never in memory as a whole.
///
/// Every file is written atomically, the index last: a reader that uses the index sees the whole model or
/// nothing. The folder is made if it is missing.
/// Memory:  the headers and what `give` passes at a time.
/// Errors:  c10::ValueError for pieces that do not fit the layout, and if one of several files already
///          exists, because several files cannot be replaced in one move; whatever `give` throws; the errors
///          of write_file_atomically(). In all these cases no new file or folder is left.
void write_safetensors_files(const SafetensorsLayout& layout, const GiveElements& give);

}  // namespace mantissa
