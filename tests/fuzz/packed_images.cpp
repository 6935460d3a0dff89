#include "mantissa/data/images/packed_images.h"

#include <iterator>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/targets.h"

namespace mantissa::fuzz {
namespace {

/// A file in memory that has a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : descriptor_(memfd_create("packed", 0)) {
    require(descriptor_ >= 0 && write(descriptor_, bytes.data(), bytes.size()) == std::ssize(bytes),
            "no memory for a file");
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace

void packed_images(std::string_view bytes) {
  const MemoryFile file(bytes);
  const auto images = accepted([&] { return std::make_unique<PackedImages>(file.path()); });
  if (!images) return;
  const PackedImages& packed = **images;
  require(packed.size() > 0, "a file without images is accepted");
  std::string buffer;
  unsigned sum = 0;
  for (int64_t i = 0; i < packed.size(); ++i) {
    require(packed.label(i) >= 0 && packed.label(i) < std::ssize(packed.classes()),
            "a label without a class");
    require(!packed.name(i).empty(), "an image without a name");
    for (const char byte : packed.read(i, buffer))
      sum += static_cast<unsigned char>(byte);  // all of it is there
  }
  require(sum <= bytes.size() * packed.size() * 255, "the bytes are not the file's");
}

}  // namespace mantissa::fuzz
