#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mantissa/core/state_dict.h"

namespace mantissa {

/// Differences between a resumed run and one without interruption, in words, for one warning.
using Differences = std::vector<std::string>;

/// A part of a run that owns its state, saves it and loads it. Each run has new parts, so that no state of an
/// earlier run remains.
class RunPart {
 public:
  RunPart() = default;
  virtual ~RunPart() = default;
  RunPart(const RunPart&) = default;
  RunPart& operator=(const RunPart&) = default;

  /// Adds the state that a resumed run needs, under keys of its own. The tensors are the run's own, not
  /// copies.
  virtual void save(StateDict& state) const = 0;
  /// Errors: c10::ValueError that names the place, for a state that does not fit.
  virtual void load(const StateReader& state, Differences& differences) = 0;
};

/// Loads `key` if it was saved. The checkpoint of another program (tools/lightning_ckpt.py) may lack parts
/// that a Mantissa checkpoint has.
template <typename Load>
void load_if_saved(const StateReader& state, const std::string& key, const std::string& what,
                   Differences& differences, const Load& load) {
  if (const std::optional<StateReader> saved = state.find(key)) {
    load(*saved);
  } else {
    differences.push_back("it has no state for " + what + ", which starts anew");
  }
}

}  // namespace mantissa
