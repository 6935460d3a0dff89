#include "cli/run_folder.h"

#include <cerrno>
#include <cstring>
#include <system_error>
#include <unistd.h>

#include <c10/util/Exception.h>

namespace mantissa::cli {
namespace fs = std::filesystem;

fs::path make_run_folder(const std::string& wanted, const std::string& label) {
  std::error_code error;
  if (!wanted.empty()) {
    const fs::path folder = wanted;
    TORCH_CHECK(!fs::exists(folder / "config.yaml", error), "output folder ", wanted,
                " already holds a run; give --output another folder, or remove it");
    fs::create_directories(folder, error);
    TORCH_CHECK(!error, "output folder ", wanted, " cannot be made: ", error.message(),
                "; give --output a folder that can");
    check_writable(folder / "config.yaml");
    return folder;
  }
  fs::create_directories("runs", error);
  TORCH_CHECK(!error, "output folder runs cannot be made here: ", error.message(),
              "; give --output a folder that can");
  for (int number = 1;; ++number) {
    const fs::path folder = fs::path("runs") / (label + "-" + std::to_string(number));
    // create_directory is atomic: of two runs that start together each gets a folder of its own.
    if (fs::create_directory(folder, error)) return folder;
    TORCH_CHECK(!error, "output folder ", folder.string(), " cannot be made: ", error.message(),
                "; give --output a folder that can");
  }
}

void check_writable(const fs::path& file) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : ".";
  std::error_code error;
  TORCH_CHECK(fs::is_directory(folder, error), file.string(), " cannot be written: there is no folder ",
              folder.string(), "; make it, or name another file");
  TORCH_CHECK(!fs::is_directory(file, error), file.string(),
              " cannot be written: it is a folder; name a file in it");
  TORCH_CHECK(access(folder.c_str(), W_OK) == 0, file.string(), " cannot be written: folder ",
              folder.string(), ": ", std::strerror(errno), "; name a file in a folder that you may write");
}

}  // namespace mantissa::cli
