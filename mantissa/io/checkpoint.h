#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "mantissa/core/state_dict.h"
#include "mantissa/io/manifest.h"

namespace mantissa {

class BackgroundWriter;

/// The file with the weights in a checkpoint's folder, which other programs can read.
inline constexpr const char* kCheckpointWeights = "weights.safetensors";

/// Everything that a run needs to resume: the model's weights under PyTorch's state_dict() names
/// (named_weights()), everything else as a tree, and the run's progress.
struct Checkpoint {
  /// The number of steps, 0 or more. The checkpoint with the most steps counts as the newest.
  int64_t step = 0;
  std::map<std::string, at::Tensor> weights;
  StateDict state;
};

/// Returns a copy on the CPU that shares no memory with `checkpoint`, so that training may continue while it
/// is written.
/// Sync: waits for each tensor that is on a device.
Checkpoint snapshot(const Checkpoint& checkpoint);

/// Writes a checkpoint as the folder `path`: weights.safetensors, state.safetensors, manifest.json. If the
/// program is killed, `path` is either unchanged or the complete new checkpoint: the checkpoint is written as
/// the sibling `.NAME.tmp-PID-N`, synced to the disk and moved into place in one step, even if it replaces an
/// older one. (If a file system cannot exchange two folders, the older one has the name `.NAME.old-PID-N` for
/// a moment, which load_checkpoint() and list_checkpoints() know.)
///
/// Shapes:  any; tensors that share memory are written once for each name. A tensor's values are kept; its
///          device, its layout in memory and whether it requires a gradient are not.
/// Memory:  see save_safetensors().
/// Threads: any number, as long as they write different checkpoints.
/// Errors:  c10::ValueError naming the place for tensors and texts that cannot be stored, and if `path` is
///          something else than a checkpoint's folder (that is, a folder without a readable manifest of
///          Mantissa's that holds more than a checkpoint's files); c10::Error naming the file, the system's
///          reason and the cure. `path` is then unchanged.
/// Source:  the format is described in docs/checkpoints.md.
/// Example: checkpoint_test.cpp, CheckpointFiles.ReadsWhatWasWritten
void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);

/// Takes a snapshot of `checkpoint` and lets `writer` write it, so that training may continue at once.
///
/// Memory: a snapshot for each checkpoint that `writer` has not finished; waits for room before it takes one.
/// Errors: those of snapshot(), and then nothing is written; those of an earlier job (see
///         BackgroundWriter::post()), and then this checkpoint is still written. An exception of
///         save_checkpoint() comes out of a later call of `writer`.
void save_checkpoint_later(BackgroundWriter& writer, const std::filesystem::path& path,
                           const Checkpoint& checkpoint);

/// Reads a whole checkpoint. It returns nothing before every byte has been verified. Tensors are on the CPU
/// and share no memory.
/// Errors: c10::ValueError naming the file and the problem if a file is missing, truncated or has another
///         checksum; those of parse_manifest(); c10::Error if the disk fails.
Checkpoint load_checkpoint(const std::filesystem::path& path);

/// Returns the contents of a checkpoint without the values: reads only manifest.json.
/// Errors: those of parse_manifest(); c10::ValueError if there is no manifest; c10::Error if the disk fails.
Manifest read_manifest(const std::filesystem::path& path);

}  // namespace mantissa
