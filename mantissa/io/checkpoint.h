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

/// The file in a checkpoint's folder that holds its weights: what other programs read.
inline constexpr const char* kCheckpointWeights = "weights.safetensors";

/// All that a run needs to go on: the model's weights under PyTorch's state_dict() names (named_weights()),
/// everything else as a tree, and how far the run was.
struct Checkpoint {
  /// Which of several is the newest: the one of the most steps. 0 or more.
  int64_t step = 0;
  std::map<std::string, at::Tensor> weights;
  StateDict state;
};

/// A copy that shares no memory with `checkpoint`, on the CPU: training may go on while it is written.
/// Sync: waits for each tensor that is on a device.
Checkpoint snapshot(const Checkpoint& checkpoint);

/// Writes a checkpoint as the folder `path`: weights.safetensors, state.safetensors, manifest.json. Whatever
/// kills the program, `path` is then as it was before or the whole new checkpoint: it is written as the
/// sibling `.NAME.tmp-PID-N`, synced to the disk and put in place in one move, also in the place of an older
/// checkpoint. (Where a file system cannot exchange two folders, the older one stands for a moment under
/// `.NAME.old-PID-N`, which load_checkpoint() and list_checkpoints() know.)
///
/// Shapes:  any; tensors that share memory are written once for each name. Of a tensor its values are kept;
///          its device, layout in memory and whether it requires a gradient are not.
/// Memory:  see save_safetensors().
/// Threads: any number, as long as they write different checkpoints.
/// Errors:  c10::ValueError naming the place for tensors and texts that cannot be stored, and if `path` is
///          something else than a checkpoint's folder (one without a readable manifest of Mantissa's that
///          holds more than a checkpoint's files); c10::Error naming the file, the system's reason and
///          the cure. `path` is then as it was before.
/// Source:  docs/checkpoints.md, the format.
/// Example: checkpoint_test.cpp, CheckpointFiles.ReadsWhatWasWritten
void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);

/// Takes a snapshot of `checkpoint` and has `writer` write it, so that training may go on at once.
///
/// Memory: a snapshot for each checkpoint that `writer` has not finished; waits for its room before it takes
///         one.
/// Errors: those of snapshot(), when nothing is written; those of an earlier job, see
///         BackgroundWriter::post(), when this one is. What save_checkpoint() throws comes out of a later
///         call of `writer`.
void save_checkpoint_later(BackgroundWriter& writer, const std::filesystem::path& path,
                           const Checkpoint& checkpoint);

/// Reads a whole checkpoint; nothing is handed out before every byte of it was verified. Tensors are on the
/// CPU and share no memory.
/// Errors: c10::ValueError naming the file and what is wrong: a file that is missing, truncated or of another
///         checksum, and those of parse_manifest(); c10::Error if the disk fails.
Checkpoint load_checkpoint(const std::filesystem::path& path);

/// What a checkpoint holds, without its values: reads manifest.json alone.
/// Errors: those of parse_manifest(); c10::ValueError if there is none, c10::Error if the disk fails.
Manifest read_manifest(const std::filesystem::path& path);

}  // namespace mantissa
