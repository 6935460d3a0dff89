#include "mantissa/core/default_dtype.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <thread>
#include <vector>

#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>
#include <c10/util/typeid.h>

namespace mantissa {
namespace {

/// A scope that has not ended.
struct OpenScope {
  int64_t number;
  std::thread::id thread;
  at::ScalarType dtype;
  caffe2::TypeMeta previous;  ///< the default dtype when this scope began
};

/// The scopes of all threads, in the order in which they began.
struct OpenScopes {
  std::mutex mutex;
  std::vector<OpenScope> all;
  int64_t next_number = 0;
};

OpenScopes& open_scopes() {
  static auto* const scopes = new OpenScopes;  // never destroyed, because a scope may end after main()
  return *scopes;
}

}  // namespace

DefaultDtypeGuard::DefaultDtypeGuard(at::ScalarType dtype) {
  // libtorch itself silently accepts an integer dtype and then keeps the old default.
  TORCH_CHECK_VALUE(c10::isFloatingType(dtype),
                    "DefaultDtypeGuard: the default dtype must be a floating-point dtype, got ",
                    c10::toString(dtype));
  OpenScopes& scopes = open_scopes();
  const std::lock_guard lock(scopes.mutex);
  const std::thread::id here = std::this_thread::get_id();
  for (const OpenScope& scope : scopes.all)
    TORCH_CHECK(
        scope.thread == here || scope.dtype == dtype, "DefaultDtypeGuard: ", c10::toString(dtype),
        " cannot become the default dtype, because another thread has made it ", c10::toString(scope.dtype),
        " and libtorch has one for the whole process; run modes of different dtypes one after another, or "
        "in processes of their own");
  number_ = scopes.next_number++;
  scopes.all.push_back({number_, here, dtype, c10::get_default_dtype()});
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
}

DefaultDtypeGuard::~DefaultDtypeGuard() {
  OpenScopes& scopes = open_scopes();
  const std::lock_guard lock(scopes.mutex);
  const auto own = std::find_if(scopes.all.begin(), scopes.all.end(),
                                [&](const OpenScope& scope) { return scope.number == number_; });
  // A scope of another thread that began later outlives this one: it will restore what this one would have.
  if (const auto later = std::next(own); later != scopes.all.end())
    later->previous = own->previous;
  else
    c10::set_default_dtype(own->previous);
  scopes.all.erase(own);
}

}  // namespace mantissa
