#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/io/atomic_file.h"
#include "mantissa/io/safetensors_header.h"

namespace mantissa {

/// The contents of a safetensors file: tensors by name, and free text by key.
struct Safetensors {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Writes named tensors so that PyTorch, numpy, JAX and others can read them. The file equals the reference
/// implementation's byte for byte. (That one leaves the order of several metadata entries open; here they are
/// sorted.)
///
/// Shapes:  any; strided, non-contiguous and 0-dim tensors and views are written with the values they show.
/// Memory:  one tensor's contiguous copy on the CPU at a time, and none for a contiguous CPU tensor. Tensors
///          that share memory are written once for each name.
/// Sync:    waits for each tensor that is on a device.
/// Errors:  c10::ValueError for tensors without bytes to write (undefined, meta, sparse, quantized), a dtype
///          that the format lacks, or a name that is not UTF-8; the errors of write_file_atomically(). In
///          each case the previous file is untouched.
/// Source:  https://github.com/huggingface/safetensors, section "Format" of its README.
void save_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {}, Links links = Links::kFollow);

/// Writes to a stream, which must throw when a write fails: for files that are part of something larger.
void write_safetensors(std::ostream& stream, const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// Reads a whole file.
/// Errors: those of SafetensorsFile.
Safetensors load_safetensors(const std::filesystem::path& path);

/// An open safetensors file, for tools that list it and for loading one tensor at a time.
///
/// Threads: several threads may call read() at once.
/// Errors:  the constructor checks the whole header against the size of the file: c10::ValueError naming the
///          file, the tensor, what is wrong and the cure (see parse_safetensors_header()); c10::Error if it
///          cannot be opened.
/// Example: safetensors_test.cpp, SafetensorsFileTest.ReadsOneTensorAtATime.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  /// Returns dtypes and shapes by name; loads nothing.
  const std::map<std::string, SafetensorsEntry>& entries() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  /// Returns a new contiguous CPU tensor. In a BOOL tensor any nonzero byte is true, as in numpy.
  /// Errors: c10::ValueError for a name that the file lacks; c10::Error if the disk fails or the file was cut
  ///         meanwhile.
  at::Tensor read(const std::string& name) const;
  /// Fills `out` with elements in row-major order, beginning at index `begin`, so that a tensor of any size
  /// can be processed in little memory.
  /// Shapes: any; `out` is contiguous, on the CPU and of the tensor's dtype.
  /// Errors: also c10::ValueError for another `out` and for elements that the tensor lacks.
  void read_into(const std::string& name, int64_t begin, const at::Tensor& out) const;

 private:
  const SafetensorsEntry& entry(const std::string& name) const;

  std::string name_;
  int fd_ = -1;
  uint64_t data_begin_ = 0;
  SafetensorsHeader header_;
};

}  // namespace mantissa
