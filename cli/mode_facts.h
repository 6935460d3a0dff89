#pragma once

#include <string>

#include "mantissa/precision/registry.h"

namespace mantissa::cli {

/// What the command line asks of a precision mode beyond its row in the table of modes.
struct ModeFacts {
  /// The optimizer steps 16-bit weights, without master weights.
  bool steps_16_bit_weights = false;
  /// The same of fp16 weights.
  bool steps_fp16_weights = false;
  /// Gradients are scaled, so that steps may be skipped.
  bool scales_gradients = false;
};

/// `mode`: its canonical name.
/// Errors: those of make_precision() on the CPU.
ModeFacts mode_facts(const std::string& mode, const PrecisionOptions& options);

}  // namespace mantissa::cli
