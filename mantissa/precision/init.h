#pragma once

#include <optional>
#include <utility>

#include <c10/core/Device.h>

#include "mantissa/precision/empty_init.h"
#include "mantissa/precision/precision.h"

namespace mantissa {

/// During its lifetime, new floating-point tensors have the mode's dtype (Lightning: `init_tensor`).
///
/// Threads, errors: those of DefaultDtypeGuard, because it sets the process's default dtype.
class TensorInit {
 public:
  explicit TensorInit(const Precision& precision) : scope_(precision.tensor_init_context()) {}
  TensorInit(const TensorInit&) = delete;
  TensorInit& operator=(const TensorInit&) = delete;

 private:
  Scope scope_;
};

/// During its lifetime, new modules have the mode's dtypes from the start, without a float32 copy in between.
///
/// Threads, errors: those of DefaultDtypeGuard, because it sets the process's default dtype.
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
  /// Lightning this includes torch::rand() and torch::randn(), so fill random buffers that are not loaded afterwards.
  /// In a mode with quantized weights, the weights are zeros.
  bool empty_init = false;
};

/// Makes a module as `precision` needs it, on `device` (Lightning: `init_module`). A mode with quantized weights
/// quantizes the module, so a model that is too large in float can be made part by part.
/// `make`: a function without arguments that returns a module holder or a pointer to a module.
/// Errors:  those of `make` and of the mode.
/// Example: init_test.cpp, InitModule.IN11_MakesTheModuleInItsDtype.
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
