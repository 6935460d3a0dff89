#include <mutex>
#include <optional>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include "mantissa/core/keep_loaded_internal.h"
#include "mantissa/weights/shared_registration_internal.h"

namespace mantissa {
namespace {

/// Returns null if no copy has registered its kernels.
const void* find_registration(const SharedKernels& kernels) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto op = dispatcher.findSchema({"mantissa::" + kernels.name, ""});
  if (!op) return nullptr;
  // Calls the operator by key, so that the thread's state (autocast, a transformation) does not affect it.
  const auto address = dispatcher.redispatch<int64_t, int64_t>(
      op->typed<int64_t(int64_t)>(), c10::DispatchKeySet(c10::DispatchKey::CPU), kernels.layout);
  TORCH_CHECK(
      address != 0, kernels.function,
      ": this process holds another release of Mantissa, whose weights this release cannot read; build "
      "both from the same source");
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an operator returns numbers and tensors, and no pointers
  return reinterpret_cast<const void*>(address);
}

/// Defines the operator by which other copies find the registration.
KernelLibrary shared_operator(const SharedKernels& kernels) {
  auto library = std::make_unique<torch::Library>(torch::Library::FRAGMENT, "mantissa", std::nullopt,
                                                  __FILE__, __LINE__);
  library->def((kernels.name + "(int layout) -> int").c_str(),
               [layout = kernels.layout, address = reinterpret_cast<int64_t>(kernels.registration)](
                   int64_t known) -> int64_t { return known == layout ? address : 0; });
  return library;
}

/// Never destroys them. The pointers let leak checkers find them.
void keep(std::vector<KernelLibrary> libraries) {
  static std::mutex mutex;  // two kinds of weights may be made at the same time
  static auto* const kept = new std::vector<std::vector<KernelLibrary>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(libraries));
}

}  // namespace

KernelLibrary kernel_library(c10::DispatchKey key, const char* name_space) {
  return std::make_unique<torch::Library>(torch::Library::IMPL, name_space, key, __FILE__, __LINE__);
}

const void* find_or_register(const SharedKernels& kernels) {
  // Also if the kernels are another copy's: the weights that this copy makes know their format or rule by
  // virtual functions of this one.
  keep_loaded(reinterpret_cast<const void*>(&find_registration), kernels.function);
  if (const void* const found = find_registration(kernels)) return found;
  std::vector<KernelLibrary> made = kernels.make();
  made.push_back(shared_operator(kernels));
  keep(std::move(made));
  return kernels.registration;
}

}  // namespace mantissa
