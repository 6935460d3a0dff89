#pragma once

#include <string>

/// What a plug-in of the tests exports. A program and its plug-ins share no symbol but those of libtorch.
struct Plugin {
  bool (*enable)();
  void (*enable_by_default)();
  void (*disable)();
  bool (*is_on)();
  /// Calls `work` with `argument` while this thread's casts are separate, by the plug-in's SeparateCasts.
  void (*with_separate_casts)(void (*work)(void*), void* argument);
  void (*pin)(const std::string& kernels);
  std::string (*choices)();
};
