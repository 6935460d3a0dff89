#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_addmm_activation_cpu_dispatch.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale_cpu_dispatch.h>
#include <ATen/ops/_convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_cpu_dispatch.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/addmv_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/dot_cpu_dispatch.h>
#include <ATen/ops/gelu_backward_cpu_dispatch.h>
#include <ATen/ops/gelu_cpu_dispatch.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/mm_ops.h>
#include <torch/library.h>

#include "mantissa/core/keep_loaded_internal.h"
#include "mantissa/kernels/aten/activation_internal.h"
#include "mantissa/kernels/aten/attention_internal.h"
#include "mantissa/kernels/aten/autocast_internal.h"
#include "mantissa/kernels/aten/choice_internal.h"
#include "mantissa/kernels/aten/convolution_internal.h"
#include "mantissa/kernels/aten/environment.h"
#include "mantissa/kernels/aten/matmul_internal.h"
#include "mantissa/kernels/aten/override_warning_internal.h"
#include "mantissa/kernels/aten/recurrent_internal.h"
#include "mantissa/kernels/aten/registration_internal.h"
#include "mantissa/kernels/aten/unscale_internal.h"

// Registering a kernel is safe while other threads run libtorch's. The dispatcher's table has an entry of
// four words for each operator and key: the kernel's object, and three functions that take it. The words are
// overwritten one after the other, and readers take no lock, so a reader may see one kernel's object with
// another kernel's function. This does no harm if every such pair works. Each kernel here is therefore
// registered in the same form as libtorch's own: the CPU kernels as TORCH_FN, whose functions ignore the
// object, and the autocast kernels as pointers, whose objects all have the same class. The replaced object
// stays alive in the dispatcher's list. Removing a kernel would free an object that a reader may hold, so no
// kernel is ever removed.

namespace mantissa::registration {
namespace {

namespace aten = kernels::aten;

std::atomic<bool> is_on = false;

using Library = std::unique_ptr<torch::Library>;

Library library_for(c10::DispatchKey key) {
  return std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
}

template <auto kOurs, auto kStock>
void add(const Library& library, const char* name) {
  using Kernel = Switched<is_on, kOurs, kStock>;
  library->impl(name, TORCH_FN(Kernel::call));
}

template <auto kOurs, auto kStock>
void add_autocast(const Library& library, const char* name) {
  library->impl(name, &Switched<is_on, kOurs, kStock>::call);
}

Library autocast_library() {
  using aten::autocast::Stock;
  Library library = library_for(c10::DispatchKey::AutocastCPU);
  add_autocast<&aten::autocast::linear, &Stock<at::_ops::linear>::call>(library, "linear");
  add_autocast<&aten::autocast::matmul, &Stock<at::_ops::matmul>::call>(library, "matmul");
  add_autocast<&aten::autocast::mm, &Stock<at::_ops::mm>::call>(library, "mm");
  add_autocast<&aten::autocast::addmm, &Stock<at::_ops::addmm>::call>(library, "addmm");
  // libtorch registers nothing in this place that would read the object.
  add<&aten::recurrent::lstm, &aten::recurrent::stock_lstm>(library, "lstm.input");
  return library;
}

Library cpu_library() {
  namespace stock = at::cpu;
  namespace composite = at::compositeexplicitautograd;
  Library library = library_for(c10::DispatchKey::CPU);
  add<&aten::matmul::mm, &stock::mm>(library, "mm");
  add<&aten::matmul::mm_out, &stock::mm_outf>(library, "mm.out");
  add<&aten::matmul::addmm, &stock::addmm>(library, "addmm");
  add<&aten::matmul::addmm_out, &stock::addmm_outf>(library, "addmm.out");
  add<&aten::matmul::addmm_, &stock::addmm_>(library, "addmm_");
  add<&aten::matmul::addmm_activation, &stock::_addmm_activation>(library, "_addmm_activation");
  add<&aten::matmul::bmm, &stock::bmm>(library, "bmm");
  add<&aten::matmul::bmm_out, &stock::bmm_outf>(library, "bmm.out");
  add<&aten::matmul::baddbmm, &stock::baddbmm>(library, "baddbmm");
  add<&aten::matmul::baddbmm_out, &stock::baddbmm_outf>(library, "baddbmm.out");
  add<&aten::matmul::baddbmm_, &stock::baddbmm_>(library, "baddbmm_");
  add<&aten::matmul::addmv, &stock::addmv>(library, "addmv");
  add<&aten::matmul::addmv_out, &stock::addmv_outf>(library, "addmv.out");
  add<&aten::matmul::addmv_, &stock::addmv_>(library, "addmv_");
  add<&aten::matmul::dot, &stock::dot>(library, "dot");
  add<&aten::activation::gelu, &stock::gelu>(library, "gelu");
  add<&aten::activation::gelu_, &stock::gelu_>(library, "gelu_");
  add<&aten::activation::gelu_backward, &stock::gelu_backward>(library, "gelu_backward");
  add<&aten::attention::forward, &stock::_scaled_dot_product_flash_attention_for_cpu>(
      library, "_scaled_dot_product_flash_attention_for_cpu");
  add<&aten::attention::backward, &stock::_scaled_dot_product_flash_attention_for_cpu_backward>(
      library, "_scaled_dot_product_flash_attention_for_cpu_backward");
  add<&aten::convolution::forward, &composite::_convolution>(library, "_convolution");
  add<&aten::convolution::backward, &composite::convolution_backward>(library, "convolution_backward");
  add<&aten::unscale::non_finite_check_and_unscale_, &stock::_amp_foreach_non_finite_check_and_unscale_>(
      library, "_amp_foreach_non_finite_check_and_unscale_");
  return library;
}

/// The state behind the switch.
struct State {
  std::mutex mutex;
  /// True once enable(), disable() or the default has decided, so that the default no longer decides.
  bool is_decided = false;
};

/// The state is never destroyed, because other threads may still multiply at the program's end.
State& state() {
  static State& state = *new State;
  return state;
}

bool enable(State& state) {
  if (!is_on && cpu_kernels_by_environment()) {
    check_environment();  // its errors belong here, not into the first product
    is_on = true;
  }
  state.is_decided = true;
  return is_on;
}

constexpr Switch kSwitch = {
    .enable =
        [] {
          const std::lock_guard lock(state().mutex);
          return enable(state());
        },
    .enable_by_default =
        [] {
          const std::lock_guard lock(state().mutex);
          if (!state().is_decided) enable(state());
        },
    .disable =
        [] {
          const std::lock_guard lock(state().mutex);
          is_on = false;
          state().is_decided = true;
        },
    .is_on = [] { return is_on.load(std::memory_order_relaxed); },
    .separate_casts = aten::autocast::separate_casts,
    .mix_products = aten::autocast::mix,
    .pin = choice::pin,
    .resume = choice::resume,
    .choices = choice::all,
    .choice_rows = choice::rows,
    .kernel_for_own_operator = kernel_for_own_operator,
};

/// A later copy of this library finds the switch through the one thing that all copies share: an operator of
/// libtorch's dispatcher. It takes the layout of the Switch that the calling copy knows, and returns an
/// address, or 0 if the layout differs from this one.
constexpr const char* kNamespace = "mantissa";
constexpr const char* kName = "mantissa::cpu_kernel_switch";
constexpr int64_t kLayout = 2;

int64_t address_of_switch(int64_t layout) {
  return layout == kLayout ? reinterpret_cast<int64_t>(&kSwitch) : 0;
}

const Switch* find_switch() {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto op = dispatcher.findSchema({kName, ""});
  if (!op) return nullptr;
  // Calls the operator by key, so that the thread's state (autocast, a transformation) does not affect it.
  const auto address = dispatcher.redispatch<int64_t, int64_t>(
      op->typed<int64_t(int64_t)>(), c10::DispatchKeySet(c10::DispatchKey::CPU), kLayout);
  TORCH_CHECK(address != 0,
              "enable_cpu_kernels: this process holds another release of Mantissa, whose CPU kernels are "
              "registered and whose switch this release cannot read; build both from the same source");
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an operator returns numbers and tensors, and no pointers
  return reinterpret_cast<const Switch*>(address);
}

const Switch& find_or_register() {
  if (const Switch* const found = find_switch()) return *found;
  // Closing a plug-in would leave the dispatcher with pointers to unloaded code.
  keep_loaded(reinterpret_cast<const void*>(&address_of_switch), "enable_cpu_kernels");
  const WithoutOverrideWarning handler;
  // The destructors of these libraries would remove the kernels, so all three are released once they are
  // made.
  auto claim = std::make_unique<torch::Library>(torch::Library::FRAGMENT, kNamespace, std::nullopt, __FILE__,
                                                __LINE__);
  claim->def("cpu_kernel_switch(int layout) -> int", address_of_switch);
  Library cpu = cpu_library(), autocast = autocast_library();
  static_cast<void>(claim.release());
  static_cast<void>(cpu.release());
  static_cast<void>(autocast.release());
  return kSwitch;
}

}  // namespace

const Switch& in_charge() {
  static const Switch& first = find_or_register();
  return first;
}

}  // namespace mantissa::registration
