#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include "mantissa/weights/shared_registration_internal.h"

namespace mantissa {

const void* find_shared_registration(const char* name, int64_t layout, const char* function) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto op = dispatcher.findSchema({name, ""});
  if (!op) return nullptr;
  // Calls the operator by key, so that the thread's state (autocast, a transformation) does not affect it.
  const auto address = dispatcher.redispatch<int64_t, int64_t>(
      op->typed<int64_t(int64_t)>(), c10::DispatchKeySet(c10::DispatchKey::CPU), layout);
  TORCH_CHECK(
      address != 0, function,
      ": this process holds another release of Mantissa, whose weights this release cannot read; build "
      "both from the same source");
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an operator returns numbers and tensors, and no pointers
  return reinterpret_cast<const void*>(address);
}

}  // namespace mantissa
