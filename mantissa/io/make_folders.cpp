#include "mantissa/io/make_folders.h"

namespace mantissa {

namespace fs = std::filesystem;

std::error_code make_folders(const fs::path& folder, std::vector<fs::path>& made) {
  std::error_code error;
  fs::path above;
  for (const fs::path& part : folder) {
    above /= part;
    if (fs::is_directory(above, error)) continue;
    if (fs::create_directory(above, error)) made.push_back(above);
    if (error) return error;
  }
  return {};
}

}  // namespace mantissa
