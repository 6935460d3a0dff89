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
/// Levels of lists and dicts that a checkpoint's state may nest.
inline constexpr int kMaxStateDepth = 64;

/// One of a checkpoint's files.
struct ManifestFile {
  uint64_t bytes = 0;
  std::string xxh3_128;  ///< see Checksum::hex()
};

/// What manifest.json of a checkpoint says; docs/checkpoints.md has the format.
///
/// Shapes: tensors are on the meta device: they have dtypes and shapes, and no values.
struct Manifest {
  int64_t step = 0;
  int64_t written_unix_ms = 0;
  std::string mantissa_version, libtorch_version;
  std::map<std::string, ManifestFile> files;
  std::map<std::string, at::Tensor> weights;
  StateDict state;
  /// For each tensor of `state`, in the order in which a walk through it (entries of dicts by name) meets
  /// them: its name in state.safetensors.
  std::vector<std::string> tensor_names;
};

/// Reads and checks a manifest.
///
/// `file` only names it in errors. `verify_checksum`: false for a text that was made by hand, or by a fuzzer.
/// Errors: c10::ValueError naming the file and what is wrong: no JSON, no manifest, a format version that is
///         not known here, a wrong checksum, a field that is missing, unknown or of a wrong type.
Manifest parse_manifest(std::string_view text, const std::string& file, bool verify_checksum = true);

/// The text of `manifest`, whose tensors may be real ones, with its checksum.
/// Errors: c10::ValueError naming the place for text and names that are not UTF-8.
std::string make_manifest(const Manifest& manifest);

/// The tensors of a state as a walk meets them, each under a name of its own: its path
/// ("optimizers.0.state.3.exp_avg"), with primes behind it where two places have the same.
/// Errors: c10::ValueError naming the place for a state that nests deeper than kMaxStateDepth.
std::vector<std::pair<std::string, at::Tensor>> named_tensors(const StateDict& state);

/// `state` with its tensors replaced, in the order of a walk, by `tensors`, of which there must be as many.
StateDict with_tensors(const StateDict& state, const std::vector<at::Tensor>& tensors);

}  // namespace mantissa
