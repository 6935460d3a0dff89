#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace mantissa {

/// The state that a batch's forward pass changes besides its results: the random number generators and the
/// module's buffers (batch norm's statistics). It is saved so that the batch can be run again. Create it
/// before the forward pass.
///
/// Memory:  a copy of the buffers, and 5 KB for the CPU's generator.
/// Sync:    none on the CPU. Buffers on a GPU are copied in its queue; generators keep their state on the
///          host.
/// Example: replay_point_test.cpp, ReplayPoint.ASecondRunSeesTheSameDropoutAndStatistics
class ReplayPoint {
 public:
  /// Saves the CPU's default generator, and that of each GPU on which `module` has a parameter or buffer.
  explicit ReplayPoint(const torch::nn::Module& module);
  /// Restores generators and buffers, the buffers in place. May be called any number of times.
  void restore() const;
  /// Restores the buffers only, for a step that must leave no trace although the generators advance.
  void restore_buffers() const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> generators_;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

}  // namespace mantissa
