#pragma once

// For tests: the modes that the program goes through. They are read from the table of modes, so that a new mode
// changes no test.

#include <string>
#include <vector>

#include "mantissa/precision/registry.h"

namespace mantissa::cli {

/// Returns the modes except Apex's levels, in the order of the table: those of a memory plan.
inline std::vector<std::string> planned_modes() {
  std::vector<std::string> names;
  for (const Mode& mode : modes())
    if (!mode.historical) names.push_back(mode.name);
  return names;
}

/// Returns the planned modes in which all weights train: those of `--precision all`.
inline std::vector<std::string> trained_modes() {
  std::vector<std::string> names = planned_modes();
  std::erase_if(names, [](const std::string& name) { return find_mode(name).traits.frozen_weights; });
  return names;
}

/// Whether adamw cannot train the mode: its squared gradients underflow in fp16.
inline bool has_fp16_weights(const std::string& name) {
  return find_mode(name).traits.weights == Format::kFloat16;
}

}  // namespace mantissa::cli
