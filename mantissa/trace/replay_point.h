#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace mantissa {

/// What a batch's forward changes besides its results, kept so that the batch can be run again: the state of
/// the random number generators and the module's buffers (batch norm's statistics). Take it before the
/// forward.
///
/// Memory:  a copy of the buffers, and 5 KB for the CPU's generator.
/// Sync:    none on the CPU; buffers on a GPU are copied in its queue, generators keep their state on the
///          host.
/// Example: replay_point_test.cpp, ReplayPoint.ASecondRunSeesTheSameDropoutAndStatistics
class ReplayPoint {
 public:
  /// Generators: the CPU's default one, and that of each GPU where `module` has a parameter or buffer.
  explicit ReplayPoint(const torch::nn::Module& module);
  /// Puts both back, buffers in place. As often as wanted.
  void restore() const;
  /// The buffers alone, for a step that shall leave no trace while the generators go on.
  void restore_buffers() const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> generators_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

}  // namespace mantissa
