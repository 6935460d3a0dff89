#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mantissa/core/state_dict.h"

namespace mantissa {

inline constexpr int64_t kManifestVersion = 1;
/// The number of levels of lists and dicts that a checkpoint's state may nest.
inline constexpr int kMaxStateDepth = 64;

/// One of a checkpoint's files.
struct ManifestFile {
  uint64_t bytes = 0;
  std::string xxh3_128;  ///< see Checksum::hex()
};

/// The contents of a checkpoint's manifest.json; docs/checkpoints.md describes the format.
///
/// Shapes: tensors are on the meta device: they have dtypes and shapes, but no values.
struct Manifest {
  int64_t step = 0;
  int64_t written_unix_ms = 0;
  std::string mantissa_version, libtorch_version;
  std::map<std::string, ManifestFile> files;
  std::map<std::string, at::Tensor> weights;
  StateDict state;
  /// For each tensor of `state`, its name in state.safetensors, in the order in which a walk (through dicts
  /// by name) meets the tensors.
  std::vector<std::string> tensor_names;
};

/// Reads and checks a manifest.
///
/// `file` is its name in errors. `verify_checksum`: false for a text that was made by hand or by a fuzzer.
/// Errors: c10::ValueError naming the file and the problem: no JSON, no manifest, an unknown format version,
///         a wrong checksum, a field that is missing, unknown or of a wrong type.
Manifest parse_manifest(std::string_view text, const std::string& file, bool verify_checksum = true);

/// Returns the text of `manifest` with its checksum. The tensors may be real ones.
/// Errors: c10::ValueError naming the place for text and names that are not UTF-8.
std::string make_manifest(const Manifest& manifest);

/// Returns the tensors of a state in the order of a walk, each with a unique name: its path
/// ("optimizers.0.state.3.exp_avg"), followed by primes if two places have the same path.
/// Errors: c10::ValueError naming the place for a state that nests deeper than kMaxStateDepth.
std::vector<std::pair<std::string, at::Tensor>> named_tensors(const StateDict& state);

/// Returns `state` with its tensors replaced by `tensors`, in the order of a walk; the numbers must be equal.
StateDict with_tensors(const StateDict& state, const std::vector<at::Tensor>& tensors);

}  // namespace mantissa
