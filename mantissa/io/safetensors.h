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

/// The content of a safetensors file: tensors by name, and free text by key.
struct Safetensors {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Writes named tensors so that PyTorch, numpy, JAX and others read them: byte for byte the file that the
/// reference implementation writes (with several metadata entries it leaves their order open; here they are
/// sorted).
///
/// Shapes:  any; strided, non-contiguous and 0-dim tensors and views are written as what they show.
/// Memory:  one tensor's contiguous copy on the CPU at a time, and none for a contiguous CPU tensor. Tensors
///          that share memory are written once for each name.
/// Sync:    waits for each tensor that is on a device.
/// Errors:  c10::ValueError for tensors that have no bytes to write (undefined, meta, sparse, quantized), a
///          dtype that the format lacks, a name that is not UTF-8; the errors of write_file_atomically().
///          Either way the file that was there before is untouched.
/// Source:  https://github.com/huggingface/safetensors, section "Format" of its README.
void save_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {}, Links links = Links::kFollow);

/// The same into a stream, which must throw when a write fails: for files that are part of something larger.
void write_safetensors(std::ostream& stream, const std::map<std::string, at::Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// Reads a whole file.
/// Errors: those of SafetensorsFile.
Safetensors load_safetensors(const std::filesystem::path& path);

/// An open safetensors file, for tools that list it and for loads that take one tensor at a time.
///
/// Threads: read() may be called from several at once.
/// Errors:  the constructor checks the whole header against the size of the file: c10::ValueError naming the
///          file, the tensor, what is wrong and the cure (see parse_safetensors_header()); c10::Error if it
///          cannot be opened.
/// Example: safetensors_test.cpp, SafetensorsFile.ReadsOneTensorAtATime.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  /// Dtypes and shapes by name; nothing is loaded.
  const std::map<std::string, SafetensorsEntry>& entries() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  /// A new contiguous CPU tensor. Of BOOL, any nonzero byte is true, as in numpy.
  /// Errors: c10::ValueError for a name that the file lacks; c10::Error if the disk fails or the file was cut
  /// meanwhile.
  at::Tensor read(const std::string& name) const;
  /// Fills `out` with elements in row-major order, from the one of index `begin`, so that a tensor of any
  /// size can be walked through in little memory.
  /// Shapes: any; `out` is contiguous, on the CPU and of the tensor's dtype. Errors: also c10::ValueError for
  /// another `out` and for elements that the tensor lacks.
  void read_into(const std::string& name, int64_t begin, const at::Tensor& out) const;

 private:
  const SafetensorsEntry& entry(const std::string& name) const;

  std::string name_;
  int fd_ = -1;
  uint64_t data_begin_ = 0;
  SafetensorsHeader header_;
};

}  // namespace mantissa
