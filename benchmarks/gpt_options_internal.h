#pragma once

#include <nlohmann/json.hpp>

#include "mantissa/models/gpt.h"

namespace mantissa {

/// The sizes of a GPT as the jobs of benchmarks/gpu name them.
inline GptOptions gpt_options(const nlohmann::json& model) {
  return {.layers = model["layers"],
          .width = model["width"],
          .heads = model["heads"],
          .context = model["context"],
          .vocabulary = model["vocabulary"]};
}

}  // namespace mantissa
