#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "mantissa/core/test_support_internal.h"
#include "mantissa/io/checkpoint.h"

namespace mantissa {

class InCheckpointFolder : public InFolder {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      found.push_back(entry.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
};

inline void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// Returns a checkpoint with everything that a checkpoint can hold; `step` is in its values too.
inline Checkpoint a_checkpoint(int64_t step, int64_t size = 100) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const at::Tensor weight = at::arange(size, at::kFloat).add(step);
  const StateDict moments{{"exp_avg", weight.mul(3)}, {"step", at::scalar_tensor(step, at::kFloat)}};
  return {step,
          {{"0.weight", weight}, {"0.bias", at::empty({0}).to(at::kBFloat16)}},
          {{"optimizers", StateList{StateDict{{"state", StateDict{{"0", moments}}}, {"lr", 0.1}}}},
           {"numbers", StateList{nan, -nan, inf, -inf, -0.0, 1.0, 5e-324, 0.1, 1e300, 1, -7,
                                 std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}},
           {"rng", at::arange(5, at::kByte)},
           {"mask", at::ones({3}, at::kBool)},
           {"complex", at::complex(at::ones({2}, at::kDouble), at::zeros({2}, at::kDouble)).conj()},
           {"text", "a \"quoted\"\n\t\\ line, Grüße"},
           {"$dollar", StateDict{{"$tensor", "not one"}, {"$$", 1}, {"", StateDict{}}}},
           {"nothing", StateValue()},
           {"no_list", StateList{}},
           {"flags", StateList{true, false}}}};
}

inline StateDict as_state(const Checkpoint& checkpoint) {
  StateDict weights;
  for (const auto& [name, tensor] : checkpoint.weights) weights.emplace(name, tensor);
  return {{"step", checkpoint.step}, {"weights", weights}, {"state", checkpoint.state}};
}

}  // namespace mantissa
