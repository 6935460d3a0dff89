#include "mantissa/precision/empty_init.h"

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "mantissa/core/keep_loaded_internal.h"

namespace mantissa {
namespace {

/// A mode of libtorch's dispatcher that a thread can switch on. It is autocast for a vendor's device that no
/// release of libtorch can compute on, so that nothing else uses it. Operations without a kernel for it fall
/// through to the next key.
constexpr c10::DispatchKey kMode = c10::DispatchKey::AutocastMAIA;

// NOLINTNEXTLINE(performance-unnecessary-value-param): the dispatcher calls a kernel with exactly these types
at::Tensor& keep_values(at::Tensor& self, double /*from*/, double /*to*/, std::optional<at::Generator>) {
  return self;
}

/// Registers the kernels once in a process, also if a plug-in has its own copy of this library.
void register_kernels() {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto op = dispatcher.findSchemaOrThrow("aten::uniform_", "");
  if (op.hasKernelForDispatchKey(kMode)) return;
  keep_loaded(reinterpret_cast<const void*>(&register_kernels), "EmptyInit");
  using Library = std::unique_ptr<torch::Library>;
  std::vector<Library> made;
  const auto add = [&](const char* name) -> torch::Library& {
    made.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, name, kMode, __FILE__, __LINE__));
    return *made.back();
  };
  if (!dispatcher.hasBackendFallbackForDispatchKey(kMode))
    add("_").fallback(torch::CppFunction::makeFallthrough());
  torch::Library& aten = add("aten");
  aten.impl("uniform_", TORCH_FN(keep_values));
  aten.impl("normal_", TORCH_FN(keep_values));
  // The destructors would remove the kernels. The pointer lets leak checkers find them.
  static const auto* const kept = new std::vector<Library>(std::move(made));
  static_cast<void>(kept);
}

/// libtorch excludes the keys of autocast on every thread, so a key is switched on by both of its settings.
void set_mode(bool on) {
  c10::impl::tls_set_dispatch_key_included(kMode, on);
  c10::impl::tls_set_dispatch_key_excluded(kMode, !on);
}

}  // namespace

EmptyInit::EmptyInit() : was_on_(c10::impl::tls_is_dispatch_key_included(kMode)) {
  static const bool is_registered = (register_kernels(), true);
  static_cast<void>(is_registered);
  set_mode(true);
}

EmptyInit::~EmptyInit() { set_mode(was_on_); }

}  // namespace mantissa
