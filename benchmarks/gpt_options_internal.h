#pragma once

#include <nlohmann/json.hpp>

#include "mantissa/models/gpt.h"

namespace mantissa {

/// Returns the sizes of a GPT from a job of benchmarks/gpu.
inline GptOptions gpt_options(const nlohmann::json& model) {
  return {.layers = model["layers"],
          .width = model["width"],
          .heads = model["heads"],
          .context = model["context"],
          .vocabulary = model["vocabulary"]};
}

}  // namespace mantissa
