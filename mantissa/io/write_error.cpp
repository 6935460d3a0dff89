#include <cerrno>
#include <system_error>

#include <c10/util/Exception.h>

#include "mantissa/io/write_error_internal.h"

namespace mantissa {
namespace {

const char* cure(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free some space or choose a folder on another disk";
    case EFBIG:
      return "raise the limit on file sizes (ulimit -f) or choose another file system";
    case EACCES:
    case EPERM:
    case EROFS:
      return "choose a folder that you may write to";
    case ENOENT:
    case ENOTDIR:
      return "create its folder first or correct the path";
    case ENAMETOOLONG:
      return "choose a shorter name";
    default:
      return "check the disk or choose another folder";
  }
}

}  // namespace

void fail_to_write(const std::filesystem::path& path, const char* doing, int error) {
  TORCH_CHECK(false, "cannot write '", path.string(), "': ", doing,
              " failed: ", std::generic_category().message(error), "; ", cure(error));
}

}  // namespace mantissa
