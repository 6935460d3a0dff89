#include "cli/yaml_file.h"

#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>

#include <c10/util/Exception.h>

#include "cli/terminal_text.h"

namespace mantissa::cli {
namespace {

constexpr size_t kLargestText = size_t{16} << 20;

/// Detects whether a document has any content.
class Content final : public YAML::EventHandler {
 public:
  bool is_empty() const { return empty_; }

  void OnDocumentStart(const YAML::Mark&) override { empty_ = true; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override { empty_ = false; }
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {
    empty_ = false;
  }
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    empty_ = false;
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    empty_ = false;
  }
  void OnMapEnd() override {}

 private:
  bool empty_ = true;
};

/// True if anything follows the first document. YAML::LoadAll() is not used, because it finds an endless
/// number of documents where a scalar is followed by "? key".
bool has_several_documents(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Content content;
  return parser.HandleNextDocument(content) && parser.HandleNextDocument(content) && !content.is_empty();
}

}  // namespace

std::string read_text(const std::filesystem::path& file, const char* flag) {
  const std::string cure = std::string("; give ") + flag + " an existing YAML file";
  std::error_code error;
  TORCH_CHECK(!std::filesystem::is_directory(file, error), file.string(), ": cannot be read: it is a folder",
              cure);
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  TORCH_CHECK(in.good(), file.string(), ": cannot be read: ", std::generic_category().message(errno), cure);
  // A device or a pipe may never end.
  std::string text;
  for (std::array<char, 65536> some{}; text.size() <= kLargestText && in.good();) {
    in.read(some.data(), some.size());
    text.append(some.data(), static_cast<size_t>(in.gcount()));
  }
  TORCH_CHECK(!in.bad(), file.string(), ": cannot be read: ", std::generic_category().message(errno), cure);
  TORCH_CHECK(text.size() <= kLargestText, file.string(), ": has more than ", human_bytes(kLargestText),
              "; give a smaller file");
  return text;
}

YAML::Node parse_document(const std::string& text, const std::string& file) {
  try {
    TORCH_CHECK_VALUE(!has_several_documents(text), file,
                      ": holds several YAML documents; keep one, the lines between two `---`");
    return YAML::Load(text);
  } catch (const YAML::DeepRecursion& error) {
    TORCH_CHECK_VALUE(false, file, ":", error.mark.line + 1,
                      ": nests too deeply; options and rules form a single map");
  } catch (const YAML::Exception& error) {
    const bool is_escape = error.msg.find("escape") != std::string::npos;
    TORCH_CHECK_VALUE(false, file, ":", error.mark.line + 1, ": not YAML: ", printable(error.msg),
                      is_escape ? "; put a text with backslashes in single quotes" : "");
  }
  return {};
}

}  // namespace mantissa::cli
