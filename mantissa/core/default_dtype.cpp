#include "mantissa/core/default_dtype.h"

#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>

namespace mantissa {

DefaultDtypeGuard::DefaultDtypeGuard(at::ScalarType dtype) : previous_(c10::get_default_dtype()) {
  // libtorch itself silently accepts an integer dtype and then keeps the old default.
  TORCH_CHECK_VALUE(c10::isFloatingType(dtype),
                    "DefaultDtypeGuard: the default dtype must be a floating-point dtype, got ",
                    c10::toString(dtype));
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
}

DefaultDtypeGuard::~DefaultDtypeGuard() { c10::set_default_dtype(previous_); }

}  // namespace mantissa
