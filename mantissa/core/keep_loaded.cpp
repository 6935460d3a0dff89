#include <dlfcn.h>
#include <link.h>

#include <c10/util/Exception.h>

#include "mantissa/core/keep_loaded_internal.h"

namespace mantissa {

void keep_loaded(const void* code, const char* what) {
  Dl_info info;
  void* map = nullptr;
  const bool is_found = dladdr1(code, &info, &map, RTLD_DL_LINKMAP) != 0;
  TORCH_CHECK(is_found && map != nullptr, what,
              ": the dynamic loader knows no library that contains this code");
  const char* const name = static_cast<const link_map*>(map)->l_name;
  if (*name == '\0') return;  // the program itself
  TORCH_CHECK(dlopen(name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) != nullptr, what, ": ", name,
              " cannot be kept loaded (", dlerror(),
              "), so nothing was started; link it with -Wl,-z,nodelete");
}

}  // namespace mantissa
