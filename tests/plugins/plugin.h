#pragma once

#include <string>

namespace at {
class Tensor;
}

/// The functions that a test plug-in exports. A program and its plug-ins share only libtorch's symbols.
struct Plugin {
  bool (*enable)();
  void (*enable_by_default)();
  void (*disable)();
  bool (*is_on)();
  /// Calls `work` with `argument` while the plug-in's SeparateCasts makes this thread's casts separate.
  void (*with_separate_casts)(void (*work)(void*), void* argument);
  void (*pin)(const std::string& kernels);
  std::string (*choices)();
  /// Returns a packed weight [4, 3] of ones, in a format of the plug-in.
  at::Tensor (*pack_ones)();
  bool (*is_packed)(const at::Tensor&);
};
