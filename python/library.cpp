// libmantissa_kernels.so, which torch.ops.load_library() loads into a running Python. It switches the kernels
// on and provides the functions of overrides.h as torch.ops.mantissa_kernels. overrides.cpp itself is not
// linked, because it registers the kernels in any process that loads it. Nothing may throw here, because no
// exception may pass through dlopen().

#include <exception>
#include <memory>
#include <string>

#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>
#include <torch/library.h>

#include "bitsandbytes_ops.h"
#include "mantissa/core/cpu_features.h"
#include "mantissa/core/threads_apart.h"
#include "mantissa/kernels/aten/registration_internal.h"

namespace {

/// Volatile, so that the text in memory is compared: a test changes it in a copy of the library.
const char* const volatile kBuiltWith = "TORCH_VERSION=" TORCH_VERSION ",";

/// The layout of libtorch's classes changes with every release, so our kernels must not see those of another
/// release.
bool is_of_this_release() { return at::show_config().find(kBuiltWith) != std::string::npos; }

/// True if another copy of this library, from another folder, is loaded.
bool is_loaded_already() {
  return c10::Dispatcher::singleton().findSchema({"mantissa_kernels::enable", ""}).has_value();
}

std::string tier() { return mantissa::tier_name(mantissa::cpu_tier()); }
std::string torch_version() { return TORCH_VERSION; }

void load() {
  if (!is_of_this_release()) {
    TORCH_WARN("mantissa_kernels: built for PyTorch " TORCH_VERSION
               ", but another version is installed; nothing is switched on. Build it again with the "
               "installed PyTorch");
    return;
  }
  if (is_loaded_already()) {
    TORCH_WARN("mantissa_kernels: loaded a second time, from another file; the first one stays active");
    return;
  }
  const auto& kernels = mantissa::registration::in_charge();
  // The library is never destroyed, just like the kernels: see registration.cpp.
  auto* const library =
      new torch::Library(torch::Library::DEF, "mantissa_kernels", std::nullopt, __FILE__, __LINE__);
  library->def("enable() -> bool", kernels.enable);
  library->def("disable() -> ()", kernels.disable);
  library->def("enabled() -> bool", kernels.is_on);
  library->def("mixed_products(bool on) -> bool", kernels.mix_products);
  library->def("bitsandbytes_kernels(bool on) -> bool", mantissa::python::use_bitsandbytes_kernels);
  library->def("tier() -> str", tier);
  library->def("pin(str kernels) -> ()", kernels.pin);
  library->def("choices() -> str", kernels.choices);
  library->def("torch_version() -> str", torch_version);
  // PyTorch's autocast keeps a copy of each weight, so a loop may change the weight before its backward pass.
  // Such loops are written in Python, and a mixed product would refuse programs that train without this
  // library.
  kernels.mix_products(false);
  kernels.enable_by_default();
  mantissa::keep_threads_apart();
}

[[maybe_unused]] const bool is_loaded = [] {
  try {
    load();
    return true;
  } catch (const c10::Error& error) {
    TORCH_WARN("mantissa_kernels: not switched on: ", error.what_without_backtrace());
  } catch (const std::exception& error) {
    TORCH_WARN("mantissa_kernels: not switched on: ", error.what());
  }
  return false;
}();

}  // namespace
