#include "cli/yaml_file.h"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include <c10/util/Exception.h>

namespace mantissa::cli {
namespace {

std::string read_text(const std::filesystem::path& file, const char* flag) {
  const std::string cure = std::string("; give ") + flag + " an existing YAML file";
  std::error_code error;
  TORCH_CHECK(!std::filesystem::is_directory(file, error), file.string(), ": cannot be read: it is a folder",
              cure);
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  TORCH_CHECK(in.good(), file.string(), ": cannot be read: ", std::generic_category().message(errno), cure);
  std::string text(std::istreambuf_iterator<char>(in), {});
  TORCH_CHECK(!in.bad(), file.string(), ": cannot be read: ", std::generic_category().message(errno), cure);
  return text;
}

}  // namespace

YAML::Node load_yaml(const std::filesystem::path& file, const char* flag) {
  const std::string text = read_text(file, flag);
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    TORCH_CHECK_VALUE(documents.size() <= 1, file.string(), ": holds ", documents.size(),
                      " YAML documents; keep one, the lines between two `---`");
    return documents.empty() ? YAML::Node() : documents.front();
  } catch (const YAML::Exception& error) {
    TORCH_CHECK_VALUE(false, file.string(), ":", error.mark.line + 1, ": not YAML: ", error.msg);
  }
  return {};
}

}  // namespace mantissa::cli
