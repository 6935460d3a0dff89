#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>

namespace mantissa {

/// Makes `dtype` the default dtype of new floating-point tensors until the scope ends, also after an
/// exception. The old dtype is captured when the scope begins.
///
/// Threads: libtorch has one default dtype for the whole process, so other threads see it, too: let them make
///          tensors with an explicit dtype. Scopes of several threads may overlap if they want the same dtype; it
///          stays the default until the last of them ends.
/// Errors:  c10::ValueError if `dtype` is not a floating-point dtype; c10::Error if a scope of another thread has
///          made another dtype the default. The default dtype has not changed then.
class DefaultDtypeGuard {
 public:
  explicit DefaultDtypeGuard(at::ScalarType dtype);
  ~DefaultDtypeGuard();
  DefaultDtypeGuard(const DefaultDtypeGuard&) = delete;
  DefaultDtypeGuard& operator=(const DefaultDtypeGuard&) = delete;

 private:
  int64_t number_;
};

}  // namespace mantissa
