#include <cerrno>
#include <fstream>
#include <system_error>

#include <c10/util/Exception.h>

#include "mantissa/data/read_file_internal.h"

namespace mantissa {

namespace fs = std::filesystem;

void read_file(const fs::path& path, const std::string& kind,
               const std::function<char*(int64_t size)>& memory_for) {
  const std::string name = kind + " '" + path.string() + "'";
  std::error_code error;
  const bool regular = fs::is_regular_file(path, error);
  TORCH_CHECK(!error || error == std::errc::no_such_file_or_directory, "cannot read ", name, ": ",
              error.message(), "; check the path and its permissions");
  TORCH_CHECK(regular, "cannot read ", name, ": ",
              fs::exists(path, error) ? "it is not a regular file" : "no such file", "; check the path");
  const auto size = static_cast<int64_t>(fs::file_size(path, error));
  TORCH_CHECK(!error, "cannot read ", name, ": ", error.message(), "; check the path");
  TORCH_CHECK_VALUE(size > 0, name, " is empty; give one with content");
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  TORCH_CHECK(in.good(), "cannot open ", name, ": ", std::generic_category().message(errno),
              "; check its permissions");
  in.read(memory_for(size), size);
  TORCH_CHECK(in.gcount() == size, "cannot read ", name, ": ", in.gcount(), " of ", size,
              " bytes could be read; check the disk, and that nothing writes to the file");
}

std::string read_file(const fs::path& path, const std::string& kind) {
  std::string bytes;
  read_file(path, kind, [&](int64_t size) {
    bytes.resize(static_cast<size_t>(size));
    return bytes.data();
  });
  return bytes;
}

}  // namespace mantissa
