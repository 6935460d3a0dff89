// Support for tests of checkpoints: lists the checkpoints in a folder.
#pragma once

#include <string>
#include <vector>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/checkpoint_folder.h"

namespace mantissa {

class InFolderOfCheckpoints : public InFolder {
 protected:
  /// Newest first.
  std::vector<std::string> names(const std::string& of = "") const {
    std::vector<std::string> found;
    for (const CheckpointEntry& entry : list_checkpoints(folder_ / of))
      found.push_back(entry.path.filename().string());
    return found;
  }
};

}  // namespace mantissa
