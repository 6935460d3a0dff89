#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/typeid.h>

namespace mantissa {

/// Makes `dtype` the default dtype of new floating-point tensors until the scope ends, also after an
/// exception. The old dtype is captured when the scope begins.
///
/// Threads: the default dtype is one value for the whole process; make tensors in worker threads with an
///          explicit dtype.
/// Errors:  c10::ValueError if `dtype` is not a floating-point dtype.
class DefaultDtypeGuard {
 public:
  explicit DefaultDtypeGuard(at::ScalarType dtype);
  ~DefaultDtypeGuard();
  DefaultDtypeGuard(const DefaultDtypeGuard&) = delete;
  DefaultDtypeGuard& operator=(const DefaultDtypeGuard&) = delete;

 private:
  caffe2::TypeMeta previous_;
};

}  // namespace mantissa
