// libmantissa_kernels.so: what torch.ops.load_library() loads into a running Python. It switches the kernels
// on and gives Python the calls of overrides.h as torch.ops.mantissa_kernels. overrides.cpp itself is not
// part of it, since that registers the kernels in any process that loads it. Nothing may throw here: no
// exception passes dlopen().

#include <exception>
#include <memory>
#include <string>

#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>
#include <torch/library.h>

#include "mantissa/core/cpu_features.h"
#include "mantissa/core/threads_apart.h"
#include "mantissa/kernels/aten/registration_internal.h"

namespace {

/// Volatile, so that the text itself is compared: a test changes it in a copy of the library.
const char* const volatile kBuiltWith = "TORCH_VERSION=" TORCH_VERSION ",";

/// Classes of libtorch are laid out anew with every release, so no kernel of ours may see another release's.
bool is_of_this_release() { return at::show_config().find(kBuiltWith) != std::string::npos; }

/// Another copy of this library, from another folder.
bool is_loaded_already() {
  return c10::Dispatcher::singleton().findSchema({"mantissa_kernels::enable", ""}).has_value();
}

std::string tier() { return mantissa::tier_name(mantissa::cpu_tier()); }
std::string torch_version() { return TORCH_VERSION; }

void load() {
  if (!is_of_this_release()) {
    TORCH_WARN(
        "mantissa_kernels: built for PyTorch " TORCH_VERSION
        ", which this is not; nothing is switched on. Build it again with the PyTorch that is installed");
    return;
  }
  if (is_loaded_already()) {
    TORCH_WARN("mantissa_kernels: loaded a second time, from another file; the first one stays in charge");
    return;
  }
  const auto& kernels = mantissa::registration::in_charge();
  // Never destroyed, as the kernels: see registration.cpp.
  auto* const library =
      new torch::Library(torch::Library::DEF, "mantissa_kernels", std::nullopt, __FILE__, __LINE__);
  library->def("enable() -> bool", kernels.enable);
  library->def("disable() -> ()", kernels.disable);
  library->def("enabled() -> bool", kernels.is_on);
  library->def("mixed_products(bool on) -> bool", kernels.mix_products);
  library->def("tier() -> str", tier);
  library->def("pin(str kernels) -> ()", kernels.pin);
  library->def("choices() -> str", kernels.choices);
  library->def("torch_version() -> str", torch_version);
  // PyTorch's autocast keeps a copy of each weight, so that a loop may change the weight before its backward
  // pass. Loops that do are written in Python, where a mixed product would refuse what trains without this
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
