#include "mantissa/kernels/overrides.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/library.h>

#include "mantissa/core/cpu_tier.h"
#include "mantissa/kernels/convolutions_internal.h"
#include "mantissa/kernels/environment.h"
#include "mantissa/kernels/gelu_internal.h"
#include "mantissa/kernels/mixed_products_internal.h"
#include "mantissa/kernels/products_internal.h"
#include "mantissa/kernels/recurrent_internal.h"
#include "mantissa/kernels/scaled_dot_product_internal.h"
#include "mantissa/kernels/unscale.h"

namespace mantissa {
namespace {

struct State {
  std::mutex mutex;
  /// Their end takes the kernels out of the dispatcher again, which then finds libtorch's.
  std::vector<std::unique_ptr<torch::Library>> libraries;
  std::atomic<bool> enabled = false;
  /// By a call of either function, or by the default: nothing is left for the default to decide.
  std::atomic<bool> decided = false;
};

/// Never destroyed: at the program's end other threads may still multiply.
State& state() {
  static State& state = *new State;
  return state;
}

/// The dispatcher warns of the first kernel in a process that takes another's place. Here that is the
/// purpose, so this one warning is dropped and any other passed on.
class WithoutOverrideWarning final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("Overriding a previously registered kernel") == std::string::npos)
      outer_.process(warning);
  }

 private:
  c10::WarningHandler& outer_ = *c10::WarningUtils::get_warning_handler();
};

std::unique_ptr<torch::Library> library_for(c10::DispatchKey key) {
  return std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
}

std::unique_ptr<torch::Library> autocast_library() {
  auto library = library_for(c10::DispatchKey::AutocastCPU);
  library->impl("linear", TORCH_FN(mixed_products::linear));
  library->impl("matmul", TORCH_FN(mixed_products::matmul));
  library->impl("mm", TORCH_FN(mixed_products::mm));
  library->impl("addmm", TORCH_FN(mixed_products::addmm));
  library->impl("lstm.input", TORCH_FN(recurrent::lstm));
  return library;
}

std::unique_ptr<torch::Library> cpu_library() {
  auto library = library_for(c10::DispatchKey::CPU);
  library->impl("mm", TORCH_FN(products::mm));
  library->impl("mm.out", TORCH_FN(products::mm_out));
  library->impl("addmm", TORCH_FN(products::addmm));
  library->impl("addmm.out", TORCH_FN(products::addmm_out));
  library->impl("addmm_", TORCH_FN(products::addmm_));
  library->impl("_addmm_activation", TORCH_FN(products::addmm_activation));
  library->impl("bmm", TORCH_FN(products::bmm));
  library->impl("bmm.out", TORCH_FN(products::bmm_out));
  library->impl("baddbmm", TORCH_FN(products::baddbmm));
  library->impl("baddbmm.out", TORCH_FN(products::baddbmm_out));
  library->impl("baddbmm_", TORCH_FN(products::baddbmm_));
  library->impl("addmv", TORCH_FN(products::addmv));
  library->impl("addmv.out", TORCH_FN(products::addmv_out));
  library->impl("addmv_", TORCH_FN(products::addmv_));
  library->impl("dot", TORCH_FN(products::dot));
  library->impl("gelu", TORCH_FN(gelus::gelu));
  library->impl("gelu_", TORCH_FN(gelus::gelu_));
  library->impl("gelu_backward", TORCH_FN(gelus::gelu_backward));
  library->impl("_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(scaled_dot_product::forward));
  library->impl("_scaled_dot_product_flash_attention_for_cpu_backward",
                TORCH_FN(scaled_dot_product::backward));
  library->impl("convolution", TORCH_FN(convolutions::convolution));
  library->impl("convolution_backward", TORCH_FN(convolutions::convolution_backward));
  library->impl("_amp_foreach_non_finite_check_and_unscale_", TORCH_FN(non_finite_check_and_unscale_));
  return library;
}

bool enable(State& state) {
  if (!state.enabled && cpu_kernels_by_environment()) {
    cpu_tier();  // its errors belong here, not into the first product
    WithoutOverrideWarning handler;
    const c10::WarningUtils::WarningHandlerGuard guard(&handler);  // this thread's alone
    state.libraries.push_back(cpu_library());
    state.libraries.push_back(autocast_library());
    state.enabled = true;
  }
  state.decided = true;
  return state.enabled;
}

}  // namespace

bool enable_cpu_kernels() {
  const std::lock_guard lock(state().mutex);
  return enable(state());
}

void disable_cpu_kernels() {
  const std::lock_guard lock(state().mutex);
  state().libraries.clear();
  state().enabled = false;
  state().decided = true;
}

bool cpu_kernels_enabled() { return state().enabled; }

void enable_cpu_kernels_by_default() {
  if (state().decided) return;
  const std::lock_guard lock(state().mutex);
  if (!state().decided) enable(state());
}

}  // namespace mantissa
