#pragma once

#include <optional>
#include <utility>

#include <c10/core/Device.h>

#include "mantissa/precision/empty_init.h"
#include "mantissa/precision/precision.h"

namespace mantissa {

/// While it lives, new floating-point tensors are made in the mode's dtype (Lightning: `init_tensor`).
///
/// Threads: sets libtorch's process-wide default dtype.
class TensorInit {
 public:
  explicit TensorInit(const Precision& precision) : scope_(precision.tensor_init_context()) {}
  TensorInit(const TensorInit&) = delete;
  TensorInit& operator=(const TensorInit&) = delete;

 private:
  Scope scope_;
};

/// While it lives, new modules are made as the mode needs them, without a float32 copy in between.
///
/// Threads: sets libtorch's process-wide default dtype.
class ModuleInit {
 public:
  explicit ModuleInit(const Precision& precision) : scope_(precision.module_init_context()) {}
  ModuleInit(const ModuleInit&) = delete;
  ModuleInit& operator=(const ModuleInit&) = delete;

 private:
  Scope scope_;
};

/// Moves parameters and buffers to `device`; each keeps its dtype. Optimizers made earlier stay valid.
void move_module(torch::nn::Module& module, at::Device device);

struct InitOptions {
  /// Skips the random initialisation (see EmptyInit), for a module whose weights are loaded next. Unlike in
  /// Lightning this includes torch::rand() and torch::randn(): make buffers that are not loaded outside. A mode with
  /// quantized weights makes weights of zeros instead.
  bool empty_init = false;
};

/// Makes a module as `precision` needs it, on `device` (Lightning: `init_module`). A mode with quantized weights
/// quantizes it, so that a model can be made part by part which is too large in float.
/// `make`: a function without arguments that returns a module holder or a pointer to a module.
/// Errors:  those of `make` and of the mode.
/// Example: init_test.cpp, InitModule.MakesTheModuleInItsDtype.
template <typename Make>
auto init_module(const Precision& precision, at::Device device, Make&& make,
                 const InitOptions& options = {}) {
  auto module = [&] {
    const ModuleInit scope(precision);
    const std::optional<EmptyInit> empty =
        options.empty_init ? std::optional<EmptyInit>(std::in_place) : std::nullopt;
    return make();
  }();
  precision.convert_initialized(*module, options.empty_init);
  move_module(*module, device);
  return module;
}

}  // namespace mantissa
